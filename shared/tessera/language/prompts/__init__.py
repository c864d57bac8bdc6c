"""What a prompt is made of beside messages: the template that writes it, and the frame of a hole to fill."""
