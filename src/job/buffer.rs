//! Buffers of a group's operations, and the backends that serve them.

use super::host::HostGroup;
use super::work::Work;
use crate::{Element, ReduceOp};

/// A rank's connection to the others of its group.
pub struct Connection(pub(crate) Backing);

pub(crate) enum Backing {
    Host(HostGroup),
}

/// Memory that a [`Group`](super::Group)'s operations own while they run: `Vec<T>` on hosts, and cudarc's `CudaSlice<T>` on
/// GPUs, of any [`Element`]; or [`Foreign`](super::Foreign) memory.
pub trait Buffer: operations::Operations + Send + 'static {
    /// Type of the elements.
    type Element: Element;

    /// Number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }
}

pub(crate) mod operations {
    use super::{Connection, ReduceOp, Work};

    /// Operations of the backend to which the buffers belong.
    pub trait Operations: Sized {
        fn all_reduce(connection: &Connection, data: Self, op: ReduceOp) -> Work<Self>;
        fn broadcast(connection: &Connection, data: Self, root: usize) -> Work<Self>;
        fn all_gather(connection: &Connection, part: Self, whole: Self) -> Work<(Self, Self)>;
        fn reduce_scatter(
            connection: &Connection,
            whole: Self,
            part: Self,
            op: ReduceOp,
        ) -> Work<(Self, Self)>;
        fn all_reduce_list(connection: &Connection, data: Vec<Self>, op: ReduceOp) -> Work<Vec<Self>>;
    }
}

impl<T: Element> operations::Operations for Vec<T> {
    fn all_reduce(connection: &Connection, data: Self, op: ReduceOp) -> Work<Self> {
        on_host(connection, "all_reduce", |host| host.all_reduce::<T, _>(data, op))
    }

    fn broadcast(connection: &Connection, data: Self, root: usize) -> Work<Self> {
        on_host(connection, "broadcast", |host| host.broadcast::<T, _>(data, root))
    }

    fn all_gather(connection: &Connection, part: Self, whole: Self) -> Work<(Self, Self)> {
        on_host(connection, "all_gather", |host| host.all_gather::<T, _>(part, whole))
    }

    fn reduce_scatter(connection: &Connection, whole: Self, part: Self, op: ReduceOp) -> Work<(Self, Self)> {
        on_host(connection, "reduce_scatter", |host| host.reduce_scatter::<T, _>(whole, part, op))
    }

    fn all_reduce_list(connection: &Connection, data: Vec<Self>, op: ReduceOp) -> Work<Vec<Self>> {
        on_host(connection, "all_reduce_list", |host| host.all_reduce_list::<T, _>(data, op))
    }
}

pub(super) fn on_host<B>(
    connection: &Connection,
    operation: &str,
    start: impl FnOnce(&HostGroup) -> Work<B>,
) -> Work<B> {
    let _ = operation;
    match &connection.0 {
        Backing::Host(host) => start(host),
    }
}
