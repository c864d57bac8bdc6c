"""The starter model of the video service: its data, training, evaluation and weights."""
