//! Builder methods for NCCL's C structs, and strings that NCCL keeps pointers to.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::error::Error;

/// Defines a struct `Settings`, and builder methods of the type with a field `settings`. Each method has its
/// type (none for a text), its field of the C struct, and the first version of NCCL with that field. Methods
/// under `unsafe` are unsafe.
macro_rules! settings {
    ($owner:ident for $raw:ty {
        $($(#[$doc:meta])* $method:ident($type:ty) => $field:ident since $since:expr;)*
    } texts {
        $($(#[$text_doc:meta])* $text:ident => $text_field:ident since $text_since:expr;)*
    } unsafe {
        $($(#[$unsafe_doc:meta])* $promise:ident($unsafe_type:ty)
            => $unsafe_field:ident since $unsafe_since:expr;)*
    }) => {
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Settings {
            $($method: Option<$type>,)*
            $($text: Option<Text>,)*
            $($promise: Option<$unsafe_type>,)*
        }

        impl $owner {
            /// NCCL's defaults.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(mut self, value: $type) -> Self {
                    self.settings.$method = Some(value);
                    self
                }
            )*
            $(
                $(#[$text_doc])*
                #[must_use]
                pub fn $text(mut self, value: &str) -> Self {
                    self.settings.$text = Some(Text::new(value));
                    self
                }
            )*
            $(
                $(#[$unsafe_doc])*
                #[must_use]
                pub unsafe fn $promise(mut self, value: $unsafe_type) -> Self {
                    self.settings.$promise = Some(value);
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
                $(if let Some(text) = &self.$text {
                    let setting = concat!(stringify!($owner), "::", stringify!($text));
                    library.require(setting, $text_since)?;
                    raw.$text_field = text.as_ptr(setting)?;
                })*
                $(if let Some(value) = self.$promise {
                    library.require(concat!(stringify!($owner), "::", stringify!($promise)), $unsafe_since)?;
                    raw.$unsafe_field = value.into();
                })*
                Ok(())
            }
        }
    };
}

pub(crate) use settings;

/// A C string, or an error for a text with a NUL byte. Clones share it: its address is stable until the last
/// one is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text(Option<Arc<CString>>);

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self(CString::new(text).ok().map(Arc::new))
    }

    pub(crate) fn as_ptr(&self, setting: &'static str) -> Result<*const c_char, Error> {
        self.0.as_ref().map(|text| text.as_ptr()).ok_or_else(|| Error::nul_in_text(setting))
    }
}
