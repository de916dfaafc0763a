//! The choice of code by the backend of a group.

/// Evaluates one expression for each backend: `$backend` is the content of the variant `Host` or `Gpu` of an
/// enum. The program may be built without one of them.
macro_rules! with_backend {
    ($enum:ident, $value:expr, $backend:ident => $call:expr $(, $pattern:pat => $other:expr)?) => {
        match $value {
            #[cfg(feature = "fabric")]
            $enum::Host($backend) => $call,
            #[cfg(feature = "nccl")]
            $enum::Gpu($backend) => $call,
            $($pattern => $other,)?
        }
    };
}

pub(super) use with_backend;
