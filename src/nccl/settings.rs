//! Builder methods for NCCL's C structs, and strings that NCCL keeps pointers to.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::error::Error;

/// Defines a struct `Settings`, and builder methods of the type with a field `settings`. Each method has its type, its
/// field of the C struct, and the first version of NCCL with that field.
macro_rules! settings {
    ($owner:ident for $raw:ty {
        $($(#[$doc:meta])* $method:ident($type:ty) => $field:ident since $since:expr;)*
    }) => {
        #[derive(Clone, Debug, Default)]
        struct Settings { $($method: Option<$type>,)* }

        impl $owner {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(mut self, value: $type) -> Self {
                    self.settings.$method = Some(value);
                    self
                }
            )*
        }

        impl Settings {
            fn apply(&self, raw: &mut $raw, library: Library) -> Result<(), Error> {
                $(if let Some(value) = self.$method {
                    library.require(concat!(stringify!($owner), "::", stringify!($method)), $since)?;
                    raw.$field = value.into();
                })*
                Ok(())
            }
        }
    };
}

pub(crate) use settings;

/// A C string, or an error for a text with a NUL byte. Clones share it: its address is stable until the last one is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct Text(Option<Arc<CString>>);

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self(CString::new(text).ok().map(Arc::new))
    }

    /// Its address; an error for a text with a NUL byte.
    pub(crate) fn as_ptr(&self, setting: &'static str) -> Result<*const c_char, Error> {
        self.0.as_ref().map(|text| text.as_ptr()).ok_or_else(|| Error::nul(setting))
    }
}
