//! Raw bindings to libfabric, loaded at run time.
