"""What is compared: this library, what else reduces tensors here, and what the machine allows."""
