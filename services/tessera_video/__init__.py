"""The video service: text to video, image to video and images, as durable jobs."""
