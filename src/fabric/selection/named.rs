//! Names of algorithms, collectives and media.

/// A text that names none of the algorithms, collectives or media.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {known}")]
pub struct UnknownName {
    pub(super) text: String,
    pub(super) known: String,
}

/// Gives an enum without fields a list of its variants, and their names in both directions.
macro_rules! named {
    ($type:ident, $count:literal: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All variants.
            pub const ALL: [Self; $count] = [$(Self::$variant),+];

            /// The name, as [`FromStr`](std::str::FromStr) reads it.
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
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                let found = Self::ALL.into_iter().find(|each| each.name() == text);
                let known = || Self::ALL.map(Self::name).join(", ");
                found.ok_or_else(|| UnknownName { text: text.to_owned(), known: known() })
            }
        }
    };
}

pub(super) use named;
