//! Settings for C structs of NCCL's: builder methods for their fields, and texts that NCCL keeps pointers to.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::error::Error;

/// A struct `Settings`, and builder methods of the type that has one as its field `settings`: for each method its type, its field
/// of the C struct, and the version of NCCL that introduced it.
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

/// A text for C, or that it cannot be one. Clones share it: its address stays the same until the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Text(Option<Arc<CString>>);

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self(CString::new(text).ok().map(Arc::new))
    }

    /// Its address; refused for a text with a NUL byte.
    pub(crate) fn as_ptr(&self, setting: &'static str) -> Result<*const c_char, Error> {
        self.0.as_ref().map(|text| text.as_ptr()).ok_or_else(|| Error::nul(setting))
    }
}
