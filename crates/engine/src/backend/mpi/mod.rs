//! Host memory over the MPI library that the program is linked to and was launched by.
//!
//! The collectives of the `mpi` crate lack `MPI_IN_PLACE` and do not report errors. So operations call MPI's
//! functions, on a communicator that returns errors.

mod unsupported;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use ::mpi::ffi;
use ::mpi::topology::{Communicator as _, SimpleCommunicator};
use ::mpi::traits::AsRaw as _;
use anyhow::Context as _;
use collectives::DataType;
use collectives::world::World;

use super::host::{Carrier, HostBackend};
use super::{Capabilities, Connections, RankWork};
use crate::collective::{Collective, Participant};
use crate::data::Op;
use crate::request::Request;
use crate::supervision::Stop;
use record::BackendLibrary;
use unsupported::{find_unsupported, reduces_data};

/// Types whose reductions over MPI can be verified. Elements of other types are moved as integers of their
/// size. MPI has no 8- and 16-bit floating-point types, and does not define integer overflow: 8-bit integers
/// soon overflow, and Open MPI 4.1 with AVX saturates their sums.
const NUMBERS: [DataType; 6] = [
    DataType::Int32,
    DataType::Uint32,
    DataType::Int64,
    DataType::Uint64,
    DataType::Float32,
    DataType::Float64,
];

const OPS: [Op; 4] = [Op::Sum, Op::Prod, Op::Max, Op::Min];

/// Maximum element count of MPI's functions.
const MOST: usize = c_int::MAX as usize;

/// Returns the MPI library whose world `process` is.
///
/// # Errors
/// [`Stop::Refused`], the same on every process, when MPI does not support the request, or the processes have
/// not met through MPI.
pub fn find_mpi(request: &Request, process: &dyn World, _: &Connections) -> Result<HostBackend, Stop> {
    let refused = |problem: &str| Err(Stop::Refused(problem.to_owned()));
    if let Some(problem) = find_unsupported(request) {
        return refused(&problem);
    }
    // MPI is not initialised in a world of another kind.
    if !::mpi::environment::is_initialized() {
        let world = request.names.field_name("world");
        return refused(&format!("MPI carries the data of MPI's own ranks only: omit {world}"));
    }
    let notes = request.collectives.contains(&Collective::AllToAllV).then(|| {
        "alltoallv in place is skipped: MPI supports it only if every two ranks send each other the same \
         number of elements"
            .to_owned()
    });
    Ok(HostBackend {
        connector: Arc::new(|_, _| connect_rank()),
        library: BackendLibrary {
            backend: "mpi".to_owned(),
            // The description of a world of MPI is its library.
            library_version: process.describe(),
            library_path: library_path(),
        },
        capabilities: Capabilities {
            data_types: if reduces_data(request) { NUMBERS.to_vec() } else { DataType::ALL.to_vec() },
            ops: OPS.to_vec(),
            out_of_place_only: vec![Collective::AllToAllV],
        },
        ranks_alone: 1,
        notes: notes.into_iter().collect(),
        connects_over_world: false,
    })
}

fn library_path() -> String {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `found` is written, the address is that of a function, and only looked up.
    let known = unsafe { libc::dladdr(ffi::MPI_Allreduce as *const c_void, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return String::new();
    }
    // SAFETY: the loader's own text, which lives as long as the library is loaded: as long as the program.
    unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned()
}

fn connect_rank() -> anyhow::Result<Box<dyn Carrier>> {
    let communicator = SimpleCommunicator::world().duplicate();
    // SAFETY: the communicator is live, and the handler is one of MPI's own.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(communicator.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
    check_code("MPI_Comm_set_errhandler", code)?;
    Ok(Box::new(MpiRank { communicator, sent: VectorCounts::default(), received: VectorCounts::default() }))
}

/// The only rank of its process, on the only thread that calls MPI while ranks measure.
struct MpiRank {
    /// A duplicate of the world communicator for these operations. It returns errors.
    communicator: SimpleCommunicator,
    /// The parts of an alltoallv, kept so that an operation allocates nothing.
    sent: VectorCounts,
    received: VectorCounts,
}

/// Counts and displacements of the ranks' parts, in elements.
#[derive(Default)]
struct VectorCounts {
    counts: Vec<c_int>,
    displacements: Vec<c_int>,
}

impl VectorCounts {
    fn set_parts(&mut self, parts: &[Range<usize>]) -> anyhow::Result<()> {
        self.counts.clear();
        self.displacements.clear();
        for part in parts {
            self.counts.push(count_of(part.len())?);
            self.displacements.push(count_of(part.start)?);
        }
        Ok(())
    }
}

/// `MPI_IN_PLACE`, which is a cast in MPI's header and therefore missing in the crate. MPICH and libraries
/// with its ABI have -1, and integer handles; Open MPI and the ABI of MPI 5 have 1, and pointer handles.
fn in_place() -> *mut c_void {
    const HANDLES_ARE_INTEGERS: bool = size_of::<ffi::MPI_Comm>() == size_of::<c_int>();
    ptr::without_provenance_mut(if HANDLES_ARE_INTEGERS { usize::MAX } else { 1 })
}

fn count_of(number: usize) -> anyhow::Result<c_int> {
    c_int::try_from(number)
        .with_context(|| format!("MPI supports at most {MOST} elements, but these are {number}"))
}

fn check_code(function: &str, code: c_int) -> anyhow::Result<()> {
    const ROOM: usize = ffi::MPI_MAX_ERROR_STRING as usize;
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; ROOM];
    let mut length = 0;
    // SAFETY: there is as much room as MPI asks for.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let length = usize::try_from(length).unwrap_or(0).min(ROOM);
    anyhow::bail!("{function} failed: {}", String::from_utf8_lossy(&text[..length]))
}

/// MPI's type of the elements. Types that are only moved are replaced by integers of their size.
fn element_type(work: &RankWork) -> anyhow::Result<ffi::MPI_Datatype> {
    // SAFETY: constants.
    let element = unsafe {
        match work.data_type {
            DataType::Int8 => ffi::RSMPI_INT8_T,
            DataType::Uint8 => ffi::RSMPI_UINT8_T,
            DataType::Int32 => ffi::RSMPI_INT32_T,
            DataType::Uint32 => ffi::RSMPI_UINT32_T,
            DataType::Int64 => ffi::RSMPI_INT64_T,
            DataType::Uint64 => ffi::RSMPI_UINT64_T,
            DataType::Float32 => ffi::RSMPI_FLOAT,
            DataType::Float64 => ffi::RSMPI_DOUBLE,
            other if work.collective.is_reduction() => anyhow::bail!("MPI cannot reduce {other}"),
            other if other.size() == 2 => ffi::RSMPI_UINT16_T,
            other if other.size() == 1 => ffi::RSMPI_UINT8_T,
            other => anyhow::bail!("MPI has no type for {other}"),
        }
    };
    Ok(element)
}

/// MPI's operator; arbitrary when nothing is reduced.
fn mpi_operator(work: &RankWork) -> anyhow::Result<ffi::MPI_Op> {
    // SAFETY: constants.
    unsafe {
        match work.op {
            None | Some(Op::Sum) => Ok(ffi::RSMPI_SUM),
            Some(Op::Prod) => Ok(ffi::RSMPI_PROD),
            Some(Op::Max) => Ok(ffi::RSMPI_MAX),
            Some(Op::Min) => Ok(ffi::RSMPI_MIN),
            Some(other) => anyhow::bail!("MPI has no operator {other}"),
        }
    }
}

/// Checks that a buffer has the length of the operation's counts.
fn require_bytes(work: &RankWork, buffer: &[u8], elements: usize) -> anyhow::Result<()> {
    let (found, expected) = (buffer.len(), elements * work.data_type.size());
    anyhow::ensure!(found == expected, "a buffer has {found} bytes, but MPI would use {expected}");
    Ok(())
}

impl Carrier for MpiRank {
    fn out_of_place(&mut self, work: &RankWork, send: &[u8], receive: &mut [u8]) -> anyhow::Result<()> {
        require_bytes(work, send, work.counts.send)?;
        require_bytes(work, receive, work.counts.receive)?;
        let (from, to) = (send.as_ptr().cast::<c_void>(), receive.as_mut_ptr().cast::<c_void>());
        match work.collective {
            // MPI_Bcast has one buffer, so the root copies its result to the other one.
            Collective::Broadcast if work.participant.is_root() => {
                // SAFETY: the root's buffer is only read.
                unsafe { self.call_collective(work, ptr::null(), from.cast_mut()) }?;
                receive.copy_from_slice(send);
                Ok(())
            }
            Collective::Hypercube => {
                receive[work.participant.rank * send.len()..][..send.len()].copy_from_slice(send);
                self.run_hypercube(work, receive)
            }
            // SAFETY: both buffers are as long as the counts say.
            _ => unsafe { self.call_collective(work, from, to) },
        }
    }

    fn in_place(&mut self, work: &RankWork, data: &mut [u8]) -> anyhow::Result<()> {
        require_bytes(work, data, work.counts.send.max(work.counts.receive))?;
        let is_root = work.participant.is_root();
        let part = |elements: usize| work.participant.rank * elements * work.data_type.size();
        let (mine, theirs) = (part(work.counts.send), part(work.counts.receive));
        let whole = data.as_mut_ptr();
        let at = |start: usize| whole.wrapping_add(start).cast::<c_void>();
        let (from, to) = match work.collective {
            Collective::Hypercube => return self.run_hypercube(work, data),
            Collective::SendRecv => return self.replace_data(work, data),
            Collective::AllToAllV => anyhow::bail!("MPI has no alltoallv in place"),
            Collective::Broadcast => (ptr::null_mut(), at(0)),
            Collective::Reduce if !is_root => (at(0), ptr::null_mut()),
            Collective::Gather if !is_root => (at(mine), ptr::null_mut()),
            Collective::Scatter if is_root => (at(0), in_place()),
            Collective::Scatter => (ptr::null_mut(), at(theirs)),
            Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Reduce
            | Collective::AllToAll
            | Collective::Gather => (in_place(), at(0)),
        };
        // SAFETY: from each address on there are as many elements as the counts say, as the whole is as long
        // as the longer buffer; a buffer that is missing is one that MPI does not look at on this rank.
        unsafe { self.call_collective(work, from, to) }
    }

    fn result_start(&self, work: &RankWork) -> usize {
        // NCCL has it at the rank's own part when it runs in place.
        if work.collective == Collective::ReduceScatter { 0 } else { work.result_start() }
    }
}

impl MpiRank {
    /// Calls the MPI function of the collective.
    ///
    /// # Safety
    /// `send` and `receive` are the addresses of as many elements as the operation's counts say, or what MPI
    /// takes in the place of a buffer on this rank; what is written overlaps nothing else.
    unsafe fn call_collective(
        &mut self,
        work: &RankWork,
        send: *const c_void,
        receive: *mut c_void,
    ) -> anyhow::Result<()> {
        let root = work.participant.root;
        let (element, operator, comm) =
            (element_type(work)?, mpi_operator(work)?, self.communicator.as_raw());
        let (sent, received) = (count_of(work.counts.send)?, count_of(work.counts.receive)?);
        // Elements from one rank to another.
        let part = count_of(work.counts.parameter)?;
        let root = count_of(root.unwrap_or(0))?;
        let (send_parts, receive_parts) = work.traffic_parts();
        self.sent.set_parts(send_parts)?;
        self.received.set_parts(receive_parts)?;
        // SAFETY: the buffers are what the caller promises. Type, operator and communicator are live, MPI is
        // initialised, and no other thread of this process calls it now. MPI is done with the buffers when a
        // function returns.
        let (function, code) = unsafe {
            match work.collective {
                Collective::AllReduce => {
                    ("MPI_Allreduce", ffi::MPI_Allreduce(send, receive, sent, element, operator, comm))
                }
                Collective::AllGather => {
                    ("MPI_Allgather", ffi::MPI_Allgather(send, part, element, receive, part, element, comm))
                }
                Collective::ReduceScatter => (
                    "MPI_Reduce_scatter_block",
                    ffi::MPI_Reduce_scatter_block(send, receive, received, element, operator, comm),
                ),
                Collective::Broadcast => {
                    ("MPI_Bcast", ffi::MPI_Bcast(receive, received, element, root, comm))
                }
                Collective::Reduce => {
                    ("MPI_Reduce", ffi::MPI_Reduce(send, receive, sent, element, operator, root, comm))
                }
                Collective::AllToAll => {
                    ("MPI_Alltoall", ffi::MPI_Alltoall(send, part, element, receive, part, element, comm))
                }
                Collective::AllToAllV => (
                    "MPI_Alltoallv",
                    ffi::MPI_Alltoallv(
                        send,
                        self.sent.counts.as_ptr(),
                        self.sent.displacements.as_ptr(),
                        element,
                        receive,
                        self.received.counts.as_ptr(),
                        self.received.displacements.as_ptr(),
                        element,
                        comm,
                    ),
                ),
                Collective::Gather => {
                    ("MPI_Gather", ffi::MPI_Gather(send, part, element, receive, part, element, root, comm))
                }
                Collective::Scatter => {
                    ("MPI_Scatter", ffi::MPI_Scatter(send, part, element, receive, part, element, root, comm))
                }
                Collective::SendRecv => {
                    let (next, previous) = neighbour_ranks(work.participant)?;
                    let status = ffi::RSMPI_STATUS_IGNORE;
                    let code = ffi::MPI_Sendrecv(
                        send, sent, element, next, 0, receive, received, element, previous, 0, comm, status,
                    );
                    ("MPI_Sendrecv", code)
                }
                Collective::Hypercube => anyhow::bail!("MPI has no hypercube of its own"),
            }
        };
        check_code(function, code)
    }

    /// Sends a buffer to the next rank, and receives the previous one's into it.
    fn replace_data(&mut self, work: &RankWork, data: &mut [u8]) -> anyhow::Result<()> {
        let (next, previous) = neighbour_ranks(work.participant)?;
        let (count, element) = (count_of(work.counts.send)?, element_type(work)?);
        let (data, comm) = (data.as_mut_ptr().cast::<c_void>(), self.communicator.as_raw());
        // SAFETY: as in `call_collective`; the buffer has `count` elements.
        let code = unsafe {
            let status = ffi::RSMPI_STATUS_IGNORE;
            ffi::MPI_Sendrecv_replace(data, count, element, next, 0, previous, 0, comm, status)
        };
        check_code("MPI_Sendrecv_replace", code)
    }

    fn run_hypercube(&mut self, work: &RankWork, data: &mut [u8]) -> anyhow::Result<()> {
        let (element, comm) = (element_type(work)?, self.communicator.as_raw());
        let part = data.len() / work.participant.ranks;
        for step in work.participant.hypercube_steps() {
            let (own, theirs) = step.split_parts(data, part);
            let count = count_of(own.len() / work.data_type.size())?;
            let peer = count_of(step.peer)?;
            let (own, theirs) = (own.as_ptr().cast::<c_void>(), theirs.as_mut_ptr().cast::<c_void>());
            // SAFETY: as in `call_collective`; both have `count` elements and do not overlap.
            let code = unsafe {
                let status = ffi::RSMPI_STATUS_IGNORE;
                ffi::MPI_Sendrecv(own, count, element, peer, 0, theirs, count, element, peer, 0, comm, status)
            };
            check_code("MPI_Sendrecv", code)?;
        }
        Ok(())
    }
}

fn neighbour_ranks(participant: Participant) -> anyhow::Result<(c_int, c_int)> {
    Ok((count_of(participant.next_rank())?, count_of(participant.previous_rank())?))
}
