//! Requests that MPI cannot carry out.

use collectives::DataType;

use super::{MOST, NUMBERS, OPS};
use crate::backend::host::requests_operator;
use crate::request::{BackendChoice, Request, Size};

/// Returns the reason for which MPI cannot carry out a request; `None` when it can.
pub(super) fn find_unsupported(request: &Request) -> Option<String> {
    let names = request.names;
    if let Some(threads @ 2..) = request.threads {
        return Some(format!(
            "{}: with MPI, every rank is a process; start this number of processes with MPI's launcher \
             instead (mpirun -np)",
            names.with_value("threads", threads)
        ));
    }
    let alone = request.backend == BackendChoice::Mpi && request.versus.is_none();
    if alone && request.provider != "auto" {
        return Some(format!(
            "{}: the option selects a provider of libfabric; an MPI library has its own variables",
            names.with_value("provider", &request.provider)
        ));
    }
    if let Some(given) = request.tuning.first_given().filter(|_| alone) {
        return Some(format!(
            "{}: the option is for collectives over libfabric; an MPI library has its own variables",
            names.field_name(given)
        ));
    }
    if let Some(op) = request.ops.iter().find(|&&op| !OPS.contains(&op) && requests_operator(request, op)) {
        let asked = names.with_value("ops", op);
        return Some(format!("{asked}: MPI does not have this operator; it has sum, prod, max and min"));
    }
    let reduced = |data_type: &&DataType| reduces_data(request) && !NUMBERS.contains(data_type);
    if let Some(data_type) = request.data_types.iter().find(reduced).filter(|_| !request.all.data_types) {
        let known = NUMBERS.map(DataType::name).join(", ");
        return Some(format!(
            "{}: MPI reduces {known}. It has no 8- and 16-bit floating-point types, and does not define \
             whether sums of 8-bit integers wrap or saturate. Collectives without a reduction take all types",
            names.with_value("data_types", data_type)
        ));
    }
    let smallest = request.data_types.iter().map(|data_type| data_type.size()).min().unwrap_or(1);
    let most = (MOST * smallest) as u64;
    let max = request.max_bytes.filter(|&max| max > most)?;
    Some(format!(
        "{}: MPI supports at most {MOST} elements, or {most} bytes of the smallest type; choose a smaller \
         size",
        names.with_value("max_bytes", Size(max))
    ))
}

pub(super) fn reduces_data(request: &Request) -> bool {
    request.collectives.iter().any(|collective| collective.is_reduction())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use crate::data::Op;
    use crate::request::{AlgorithmChoice, FabricOptions};
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter, SendRecv};

    fn of(collectives: &[Collective]) -> Request {
        Request { backend: BackendChoice::Mpi, ..Request::new(collectives.to_vec()) }
    }

    #[test]
    fn what_mpi_cannot_do_is_refused_with_what_it_can() {
        let ring = AlgorithmChoice { collective: None, algorithm: collectives::fabric::Algorithm::Ring };
        let tuning = FabricOptions { algorithms: vec![ring], ..FabricOptions::default() };
        let types = |types: &[DataType], request| Request { data_types: types.to_vec(), ..request };
        let ops = |ops: &[Op], request| Request { ops: ops.to_vec(), ..request };
        let up_to = |max, request| Request { max_bytes: Some(max), ..request };
        let all_reduce = || of(&[AllReduce]);
        for (request, parts) in [
            (Request { threads: Some(2), ..all_reduce() }, &["threads 2", "mpirun -np"][..]),
            (Request { provider: "shm".to_owned(), ..all_reduce() }, &["provider shm", "libfabric"]),
            (ops(&[Op::Sum, Op::Avg], all_reduce()), &["ops avg", "sum, prod, max and min"]),
            (Request { tuning, ..all_reduce() }, &["algorithms", "libfabric"]),
            (
                types(&[DataType::Float32, DataType::Float16], of(&[Reduce])),
                &["data_types half", "int32, uint32", "double"],
            ),
            (types(&[DataType::Uint8], of(&[ReduceScatter])), &["data_types uint8", "saturate"]),
            (types(&[DataType::Float8E5M2], of(&[AllGather, ReduceScatter])), &["data_types f8e5m2"]),
            (
                up_to(2 << 30, types(&[DataType::Int8], of(&[AllGather]))),
                &["max_bytes 2G", "2147483647 elements", "2147483647 bytes"],
            ),
            (up_to(16 << 30, types(&[DataType::Float16], of(&[AllGather]))), &["4294967294 bytes"]),
        ] {
            let text = find_unsupported(&request).unwrap_or_else(|| panic!("{request:?} is taken"));
            assert!(parts.iter().all(|part| text.contains(part)), "{request:?}: {text}");
        }
    }

    #[test]
    fn what_mpi_can_do_is_taken() {
        let types = |types: &[DataType], request| Request { data_types: types.to_vec(), ..request };
        let every = Request {
            threads: Some(1),
            data_types: DataType::ALL.to_vec(),
            ops: Op::ALL.to_vec(),
            all: crate::request::All { collectives: true, data_types: true, ops: true },
            ..of(&Collective::ALL)
        };
        for request in [
            of(&Collective::ALL),
            every,
            Request {
                ops: vec![Op::Sum, Op::Prod, Op::Max, Op::Min],
                ..types(&[DataType::Int32, DataType::Uint64, DataType::Float64], of(&[AllReduce]))
            },
            types(&[DataType::Float16, DataType::Bfloat16, DataType::Float8E4M3], of(&[AllGather, SendRecv])),
            Request { ops: vec![Op::Avg], ..of(&[Broadcast]) },
            Request {
                max_bytes: Some(2_147_483_647),
                ..types(&[DataType::Int8, DataType::Float64], of(&[AllGather]))
            },
            Request { max_bytes: Some(8 << 30), ..types(&[DataType::Float64], of(&[AllGather])) },
        ] {
            assert_eq!(find_unsupported(&request), None, "{request:?}");
        }
    }
}
