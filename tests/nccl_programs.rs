//! Programs as users write them, whole ones but for one function: each compiles. They run on GPUs only.

#![cfg(feature = "nccl")]
#![allow(dead_code, reason = "nothing calls them here")]

#[path = "programs/graph_refill.rs"]
mod graph_refill;
#[path = "programs/mesh.rs"]
mod mesh;
#[path = "programs/overlapped_buckets.rs"]
mod overlapped_buckets;
#[path = "programs/process_many_devices.rs"]
mod process_many_devices;
#[path = "programs/ring.rs"]
mod ring;
#[path = "programs/several_ids.rs"]
mod several_ids;
#[path = "programs/symmetric_windows.rs"]
mod symmetric_windows;
#[path = "programs/thread_per_device.rs"]
mod thread_per_device;
