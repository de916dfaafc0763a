//! Raw bindings to libnccl, loaded at run time.
