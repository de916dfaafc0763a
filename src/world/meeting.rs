//! What ranks bring together for one barrier or all_gather.

use super::Error;

/// What one rank brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contribution {
    /// It is at a barrier.
    Barrier,
    /// Its message for an all_gather.
    Message(Vec<u8>),
}

impl Contribution {
    fn name(&self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Message(_) => "all_gather",
        }
    }
}

/// The messages of all ranks, from `first` on in order; none at a barrier.
///
/// # Errors
/// When some ranks are at a barrier and others at an all_gather.
pub(super) fn agree(contributions: Vec<Contribution>, first: usize) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let expected = contributions.first().map_or("barrier", Contribution::name);
    let mut messages = Vec::new();
    for (index, contribution) in contributions.into_iter().enumerate() {
        let name = contribution.name();
        if name != expected {
            return Err(Error::Mismatch(format!(
                "rank {first} called {expected} while rank {} called {name}; all ranks call the same collectives in \
                 the same order",
                first + index
            )));
        }
        if let Contribution::Message(message) = contribution {
            messages.push(message);
        }
    }
    Ok((!messages.is_empty()).then_some(messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_at_different_calls_are_named() {
        let message = |byte| Contribution::Message(vec![byte]);
        assert_eq!(agree(vec![message(1), message(2)], 0), Ok(Some(vec![vec![1], vec![2]])));
        assert_eq!(agree(vec![Contribution::Barrier, Contribution::Barrier], 0), Ok(None));
        let text = agree(vec![message(1), message(1), Contribution::Barrier], 4).unwrap_err().to_string();
        assert!(text.starts_with("rank 4 called all_gather while rank 6 called barrier"), "{text}");
    }
}
