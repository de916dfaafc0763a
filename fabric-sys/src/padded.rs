//! Memory for the application's structs that the library reads or writes.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

const SIZE: usize = 256;

/// A zeroed `T` with zeroed padding: a newer library with a longer `T` reads zeros from the padding and
/// writes into it.
///
/// For `fi_cq_attr`, `fi_av_attr`, `fi_cntr_attr`, `fi_eq_attr`, `fi_mr_attr`, `fi_cq_err_entry` and
/// `fi_eq_err_entry`, all at most 112 bytes in every libfabric up to 2.6.
#[repr(C, align(16))]
pub struct Padded<T> {
    bytes: [MaybeUninit<u8>; SIZE],
    value: std::marker::PhantomData<T>,
}

/// Marks plain C structs with all zero bytes as a valid value.
///
/// # Safety
/// All zero bytes must be a valid `Self`, `Self` must not need dropping, and its alignment must be at
/// most 16.
pub unsafe trait Zeroed: Copy {}

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        // SAFETY: a C struct of integers, pointers, optional function pointers and newtypes of integers: zero
        // is a value of each. `Copy` types have no drop; the alignment is a pointer's.
        unsafe impl Zeroed for crate::$name {}
        const _: () = assert!(size_of::<crate::$name>() <= SIZE && align_of::<crate::$name>() <= 16);
    )*};
}

zeroed! {
    fi_av_attr fi_cntr_attr fi_cq_attr fi_cq_err_entry fi_eq_attr fi_eq_err_entry fi_mr_attr
}

impl<T: Zeroed> Padded<T> {
    /// All zero.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self { bytes: [MaybeUninit::new(0); SIZE], value: std::marker::PhantomData }
    }

    /// The struct's address, with the right to all of the memory behind it.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.bytes.as_mut_ptr().cast()
    }
}

impl<T: Zeroed> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the memory is initialised, aligned (16, checked against T) and long enough (checked); it
        // began as zeros, a valid T, and later writes are through a `T` or by the library as a T.
        unsafe { &*self.bytes.as_ptr().cast() }
    }
}

impl<T: Zeroed> DerefMut for Padded<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { &mut *self.bytes.as_mut_ptr().cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fi_cq_attr, fi_cq_err_entry};

    #[test]
    fn padding_is_zero_and_the_value_is_at_its_start() {
        let mut attributes = Padded::<fi_cq_attr>::zeroed();
        attributes.size = 7;
        assert_eq!(size_of_val(&attributes), SIZE);
        // SAFETY: `attributes` is SIZE initialised bytes.
        let bytes = unsafe { std::slice::from_raw_parts(attributes.as_mut_ptr().cast::<u8>(), SIZE) };
        assert_eq!(bytes[0], 7);
        assert!(bytes[1..].iter().all(|&byte| byte == 0));
        assert_eq!(Padded::<fi_cq_err_entry>::zeroed().err, 0);
    }
}
