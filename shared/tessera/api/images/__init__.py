"""`/v1/images`: image generation as jobs of one frame."""
