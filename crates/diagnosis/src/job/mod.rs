//! A running job, asked through NCCL's RAS socket, and flight recorder dumps of PyTorch.
