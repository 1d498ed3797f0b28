"""What is shown to people: plots."""
