//! Raw bindings to libnccl, loaded at run time.
//!
//! Nothing is linked: a program with this crate starts on a machine without NCCL, and one build works with
//! every NCCL from [`FLOOR`] on. [`Nccl::load`] finds the library once per process; its methods are NCCL's
//! functions under their own names. A function newer than the loaded library returns [`MissingSymbol`].
//!
//! ```no_run
//! let nccl = nccl_sys::Nccl::load()?;
//! println!("NCCL {} from {}", nccl.version(), nccl.path().display());
//! # Ok::<(), &nccl_sys::LoadError>(())
//! ```

#[allow(missing_docs, unreachable_pub, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::missing_safety_doc)]
mod bindings;
mod initializer;
mod library;
mod table;
mod version;

pub use bindings::*;
pub use initializer::NCCL_CONFIG_UNDEF_INT;
pub use library::{LoadError, MissingSymbol, Nccl};
pub use table::{API, FLOOR};
pub use version::Version;
