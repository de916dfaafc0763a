//! Texts that NCCL keeps pointers to.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::error::Error;

/// A text for C, or that it cannot be one. Clones share it: its address stays the same until the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Text(Option<Arc<CString>>);

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self(CString::new(text).ok().map(Arc::new))
    }

    /// Its address.
    ///
    /// # Errors
    /// [`Error::Text`] for a text with a NUL byte; `what` names the setting.
    pub(crate) fn as_ptr(&self, what: &'static str) -> Result<*const c_char, Error> {
        self.0.as_ref().map(|text| text.as_ptr()).ok_or(Error::Text { what })
    }
}
