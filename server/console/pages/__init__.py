"""The pages of the console, and what they are made of."""
