//! The plan of a run over host memory, without its other processes and libraries.

use collectives::world;

use super::checks::{check_elements, check_fault, check_ranks, limit_to_capabilities};
use crate::backend::{Capabilities, fabric, host};
use crate::groups::Groups;
use crate::request::{BackendChoice, Request, Versus};
use crate::supervision::Stop;
use crate::sweep::{SweepPlan, sizing};

/// A run over host memory that can be carried out.
#[derive(Debug)]
pub struct HostPlan {
    /// The request without what is left out.
    pub request: Request,
    /// Largest size in bytes.
    pub max_bytes: u64,
    /// Bytes of a rank's send and receive buffer.
    pub buffers: [u64; 2],
}

impl HostPlan {
    /// Plans a run of `ranks` ranks in `groups`. `here` of the ranks share this host.
    ///
    /// # Errors
    /// [`Stop::Refused`] with the refusal of the run.
    pub fn new(request: &Request, ranks: usize, groups: &Groups, here: usize) -> Result<Self, Stop> {
        if let Some(problem) = host::find_unsupported(request) {
            return Err(Stop::Refused(problem));
        }
        let capabilities = match request.backend {
            BackendChoice::Mpi => Capabilities::default(),
            _ => fabric::list_capabilities(),
        };
        let mut request = limit_to_capabilities(request, &capabilities);
        check_ranks(&request, ranks, groups)?;
        if request.backend == BackendChoice::Mpi || request.versus == Some(Versus::Mpi) {
            host::refuse_parts(groups, ranks)?;
        }
        if request.backend != BackendChoice::Mpi {
            // More hosts than this one may be meant.
            groups.group_sizes().try_for_each(|ranks| fabric::refuse_unfit(&request, ranks, false))?;
        }
        let owner = format!("host memory of {}", world::host().name);
        let capacity = (host::divide_memory(here)?, owner.as_str());
        let (max_bytes, buffers, reduced_to) =
            sizing::sizes_within(&request, host::DEFAULT_MAX_BYTES, capacity, groups)?;
        check_fault(&request, max_bytes, groups)?;
        check_elements(&request, SweepPlan::new(&request, max_bytes).sweep, groups)?;
        if reduced_to.is_some() {
            let reduced = request.names.field_name("max_bytes");
            request.notes.push(format!("{reduced} is reduced to what fits into the {owner}"));
        }
        Ok(Self { request, max_bytes, buffers: [buffers.send as u64, buffers.receive as u64] })
    }
}
