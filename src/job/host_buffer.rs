//! Host memory of a group's operations.

use crate::Element;

/// Host memory that an operation can own.
pub(crate) trait HostBuffer: Send + 'static {
    /// Type of the elements.
    type Element: Element;

    fn elements(&self) -> &[Self::Element];
    fn elements_mut(&mut self) -> &mut [Self::Element];
}

impl<T: Element> HostBuffer for Vec<T> {
    type Element = T;

    fn elements(&self) -> &[T] {
        self
    }

    fn elements_mut(&mut self) -> &mut [T] {
        self
    }
}
