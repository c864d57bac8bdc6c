"""Result files of jobs: in a directory or in an S3 bucket."""
