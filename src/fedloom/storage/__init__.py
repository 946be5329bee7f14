"""What is kept on disk and in bytes: files and their folders, the codec of tensors, clients' states, keys."""
