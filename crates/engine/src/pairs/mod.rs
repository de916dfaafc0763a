//! Tests of pairs of ranks: messages and remote memory access between libfabric's endpoints.
//!
//! `rank` opens the endpoints of a rank and measures its pairs: `memory` is the source and destination of a
//! transfer, `side` one side of a pair, `parallel` runs several endpoints at the same time, and `results`
//! makes the record. [`Bench`](crate::bench::Bench) carries out a [`PairRequest`].

mod memory;
mod parallel;
mod rank;
mod request;
mod results;
mod side;

use collectives::fabric::Error;

pub use request::{PairMemory, PairRequest, Test};

pub(crate) use rank::PairRank;

use crate::supervision::Stop;

/// Checks that libfabric and the provider offer such endpoints here.
///
/// # Errors
/// [`Stop::Refused`] when they do not.
pub fn check_provider(request: &PairRequest) -> Result<(), Stop> {
    let mut options = rank::endpoint_options(request);
    options.source.clone_from(&request.source);
    let domains = request.domains.iter().cloned().map(Some);
    let default = request.domains.is_empty().then_some(None);
    domains.chain(default).try_for_each(|domain| {
        options.domain = domain;
        options.check().map_err(into_stop)
    })
}

/// Maps a failed call to [`Stop::Failed`], and everything else, such as a missing provider, to
/// [`Stop::Refused`].
fn into_stop(error: Error) -> Stop {
    match error {
        Error::Call(_) => Stop::Failed(error.into()),
        _ => Stop::Refused(error.to_string()),
    }
}
