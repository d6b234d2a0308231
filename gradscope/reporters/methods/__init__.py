"""The list of the saliency methods."""
