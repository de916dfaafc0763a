//! The variables that NCCL, its plugins and libfabric read.
