//! Enums written and read by name.

/// Error of parsing a text that is none of the known names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {known}")]
pub struct UnknownName {
    text: String,
    known: String,
}

impl UnknownName {
    pub(crate) fn new(text: &str, known: &[&str]) -> Self {
        Self { text: text.to_owned(), known: known.join(", ") }
    }
}

/// Implements `ALL`, `name`, `Display` and `FromStr` for an enum without fields.
macro_rules! named {
    ($type:ident: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name, as read by [`FromStr`](std::str::FromStr).
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                let found = Self::ALL.into_iter().find(|each| each.name() == text);
                found.ok_or_else(|| $crate::UnknownName::new(text, &Self::ALL.map(Self::name)))
            }
        }
    };
}

pub(crate) use named;
