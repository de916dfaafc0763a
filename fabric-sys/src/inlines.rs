//! The inline functions of libfabric's headers: calls through the objects' tables of function pointers.
//!
//! Each is `unsafe` for the requirements of the C function: objects must be live, of the right kind and
//! opened with the needed capabilities; buffers must outlive the operation; threads must keep to the domain's
//! threading model. A slot left empty by a provider returns `-FI_ENOSYS`, as does every slot of a missing
//! table (some providers have no table for capabilities that were not requested). libfabric 1.17 has all
//! slots, so the tables' sizes are not checked.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libc::iovec;

use crate::{
    FI_ADDR_NOTAVAIL, FI_ENABLE, fi_addr_t, fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_info,
    fi_mr_attr, fi_msg, fi_msg_rma, fi_msg_tagged, fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep,
    fid_fabric, fid_mr, fid_t,
};

/// Return value of a call without a slot.
pub(crate) trait Absent {
    const ABSENT: Self;
}

impl Absent for c_int {
    const ABSENT: Self = -crate::FI_ENOSYS;
}

impl Absent for isize {
    const ABSENT: Self = -(crate::FI_ENOSYS as isize);
}

impl Absent for u64 {
    const ABSENT: Self = 0;
}

impl Absent for *const c_char {
    const ABSENT: Self = std::ptr::null();
}

/// Defines inline functions as calls of a slot with the object and the arguments.
///
/// `object: pointer type, struct.table` heads the functions of a table; the struct begins at the object's
/// address.
macro_rules! inlines {
    ($(
        $object:ident: $pointer:ty, $struct:ident.$table:ident {$(
            $(#[$attribute:meta])*
            fn $name:ident = $slot:ident($($parameter:ident: $type:ty),*) -> $result:ty;
        )*}
    )*) => {$($(
        $(#[$attribute])*
        ///
        /// # Safety
        /// The inline function of C: see this crate's list of them.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($object: $pointer, $($parameter: $type),*) -> $result {
            // SAFETY: the caller vouches for a live object, so its table, if any, is readable, and for the
            // arguments required by the slot's C function. A slot's object is the object or the `fid` at its
            // beginning.
            unsafe {
                let table = (*$object.cast::<$struct>()).$table;
                if table.is_null() {
                    return <$result as Absent>::ABSENT;
                }
                match (*table).$slot {
                    Some(function) => function($object.cast(), $($parameter),*),
                    None => <$result as Absent>::ABSENT,
                }
            }
        }
    )*)*};
}

inlines! {
    fid: *mut fid, fid.ops {
        /// Closes an object. Children go first: endpoints before the objects bound to them, these before
        /// their domain, the domain before its fabric.
        fn fi_close = close() -> c_int;

        /// Sends a control command.
        fn fi_control = control(command: c_int, argument: *mut c_void) -> c_int;

        /// Opens a provider's own table of functions.
        fn fi_open_ops = ops_open(
            name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void
        ) -> c_int;
    }

    fabric: *mut fid_fabric, fid_fabric.ops {
        /// Opens a domain.
        fn fi_domain = domain(
            info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void
        ) -> c_int;

        /// Checks whether a thread may wait on the wait objects of these queues now.
        fn fi_trywait = trywait(fids: *mut *mut fid, count: c_int) -> c_int;
    }

    domain: *mut fid_domain, fid_domain.ops {
        /// Opens an endpoint.
        fn fi_endpoint = endpoint(info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int;

        /// Opens an address vector.
        fn fi_av_open = av_open(attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int;

        /// Opens a completion queue.
        fn fi_cq_open = cq_open(attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int;

        /// Opens a counter.
        fn fi_cntr_open = cntr_open(
            attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr, context: *mut c_void
        ) -> c_int;
    }

    ep: *mut fid_ep, fid.ops {
        /// Binds a queue, counter or address vector to an endpoint.
        fn fi_ep_bind = bind(bfid: *mut fid, flags: u64) -> c_int;
    }

    fid: fid_t, fid_ep.ops {
        /// Cancels the operation with this context.
        fn fi_cancel = cancel(context: *mut c_void) -> isize;

        /// Sets an endpoint's option.
        fn fi_setopt = setopt(level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int;

        /// Reads an endpoint's option.
        fn fi_getopt = getopt(level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize) -> c_int;
    }

    fid: fid_t, fid_ep.cm {
        /// Chooses an endpoint's own address, before it is enabled.
        fn fi_setname = setname(addr: *mut c_void, addrlen: usize) -> c_int;

        /// Reads an endpoint's own address.
        fn fi_getname = getname(addr: *mut c_void, addrlen: *mut usize) -> c_int;
    }

    av: *mut fid_av, fid_av.ops {
        /// Inserts `count` addresses; returns the number of inserted ones.
        fn fi_av_insert = insert(
            addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
        ) -> c_int;

        /// Resolves a host and service and inserts the address.
        fn fi_av_insertsvc = insertsvc(
            node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void
        ) -> c_int;

        /// Removes addresses.
        fn fi_av_remove = remove(fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;

        /// Reads the address behind a `fi_addr_t`.
        fn fi_av_lookup = lookup(fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;

        /// Writes an address for people to read.
        fn fi_av_straddr = straddr(addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char;
    }

    cq: *mut fid_cq, fid_cq.ops {
        /// Reads up to `count` entries; moves data where progress is manual.
        fn fi_cq_read = read(buf: *mut c_void, count: usize) -> isize;

        /// Reads entries and the addresses of their senders.
        fn fi_cq_readfrom = readfrom(buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize;

        /// Waits for entries.
        fn fi_cq_sread = sread(buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize;

        /// Waits for entries and the addresses of their senders.
        fn fi_cq_sreadfrom = sreadfrom(
            buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void, timeout: c_int
        ) -> isize;

        /// Wakes a thread waiting in `fi_cq_sread`.
        fn fi_cq_signal = signal() -> c_int;

        /// The text of a provider's error number.
        fn fi_cq_strerror = strerror(
            prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize
        ) -> *const c_char;
    }

    cntr: *mut fid_cntr, fid_cntr.ops {
        /// Number of completed operations.
        fn fi_cntr_read = read() -> u64;

        /// Number of failed operations.
        fn fi_cntr_readerr = readerr() -> u64;

        /// Adds to the count.
        fn fi_cntr_add = add(value: u64) -> c_int;

        /// Sets the count.
        fn fi_cntr_set = set(value: u64) -> c_int;

        /// Waits until the count reaches `threshold`; `timeout` in milliseconds, negative for none.
        fn fi_cntr_wait = wait(threshold: u64, timeout: c_int) -> c_int;
    }

    domain: *mut fid_domain, fid_domain.mr {
        /// Registers a buffer.
        fn fi_mr_reg = reg(
            buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void
        ) -> c_int;

        /// Registers several buffers as one region.
        fn fi_mr_regv = regv(
            iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void
        ) -> c_int;

        /// Registers by attributes: device memory, dmabuf. `attr` must be a [`crate::Padded`] one.
        fn fi_mr_regattr = regattr(attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }

    mr: *mut fid_mr, fid.ops {
        /// Binds a region to an endpoint or counter.
        fn fi_mr_bind = bind(bfid: *mut fid, flags: u64) -> c_int;
    }

    ep: *mut fid_ep, fid_ep.msg {
        /// Posts a receive.
        fn fi_recv = recv(
            buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, context: *mut c_void
        ) -> isize;

        /// Posts a receive into several buffers.
        fn fi_recvv = recvv(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            context: *mut c_void
        ) -> isize;

        /// Posts a receive with flags.
        fn fi_recvmsg = recvmsg(msg: *const fi_msg, flags: u64) -> isize;

        /// Posts a send.
        fn fi_send = send(
            buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, context: *mut c_void
        ) -> isize;

        /// Posts a send of several buffers.
        fn fi_sendv = sendv(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            context: *mut c_void
        ) -> isize;

        /// Posts a send with flags.
        fn fi_sendmsg = sendmsg(msg: *const fi_msg, flags: u64) -> isize;

        /// Sends a short message. Its buffer may be reused after the call.
        fn fi_inject = inject(buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;

        /// Posts a send with data for the receiver's completion.
        fn fi_senddata = senddata(
            buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
            context: *mut c_void
        ) -> isize;

        /// Sends a short message with data for the receiver's completion.
        fn fi_injectdata = injectdata(
            buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t
        ) -> isize;
    }

    ep: *mut fid_ep, fid_ep.tagged {
        /// Posts a receive of a message whose tag equals `tag` in all bits not set in `ignore`.
        fn fi_trecv = recv(
            buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64, ignore: u64,
            context: *mut c_void
        ) -> isize;

        /// Posts a receive into several buffers.
        fn fi_trecvv = recvv(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, tag: u64,
            ignore: u64, context: *mut c_void
        ) -> isize;

        /// Posts a receive with flags.
        fn fi_trecvmsg = recvmsg(msg: *const fi_msg_tagged, flags: u64) -> isize;

        /// Posts a send.
        fn fi_tsend = send(
            buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void
        ) -> isize;

        /// Posts a send of several buffers.
        fn fi_tsendv = sendv(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void
        ) -> isize;

        /// Posts a send with flags.
        fn fi_tsendmsg = sendmsg(msg: *const fi_msg_tagged, flags: u64) -> isize;

        /// Sends a short message. Its buffer may be reused after the call.
        fn fi_tinject = inject(buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64) -> isize;

        /// Posts a send with data for the receiver's completion.
        fn fi_tsenddata = senddata(
            buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void
        ) -> isize;

        /// Sends a short message with data for the receiver's completion.
        fn fi_tinjectdata = injectdata(
            buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64
        ) -> isize;
    }

    ep: *mut fid_ep, fid_ep.rma {
        /// Reads from a peer's region.
        fn fi_read = read(
            buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64, key: u64,
            context: *mut c_void
        ) -> isize;

        /// Reads from a peer's region into several buffers.
        fn fi_readv = readv(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void
        ) -> isize;

        /// Reads with flags.
        fn fi_readmsg = readmsg(msg: *const fi_msg_rma, flags: u64) -> isize;

        /// Writes into a peer's region.
        fn fi_write = write(
            buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64,
            context: *mut c_void
        ) -> isize;

        /// Writes several buffers into a peer's region.
        fn fi_writev = writev(
            iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void
        ) -> isize;

        /// Writes with flags.
        fn fi_writemsg = writemsg(msg: *const fi_msg_rma, flags: u64) -> isize;

        /// Writes a short buffer. It may be reused after the call.
        fn fi_inject_write = inject(
            buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64
        ) -> isize;

        /// Writes with data for the peer's completion queue.
        fn fi_writedata = writedata(
            buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void
        ) -> isize;

        /// Writes a short buffer with data for the peer's completion queue.
        fn fi_inject_writedata = injectdata(
            buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64
        ) -> isize;
    }
}

/// Makes an endpoint ready for transfers.
///
/// # Safety
/// The inline function of C: see this crate's list of them.
#[inline]
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    // SAFETY: passed on to the caller; an endpoint begins with its `fid`.
    unsafe { fi_control(ep.cast(), FI_ENABLE as c_int, ptr::null_mut()) }
}

/// Makes a bound region ready for use.
///
/// # Safety
/// The inline function of C: see this crate's list of them.
#[inline]
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    // SAFETY: passed on to the caller; a region begins with its `fid`.
    unsafe { fi_control(mr.cast(), FI_ENABLE as c_int, ptr::null_mut()) }
}

/// Reads the error behind a read's result `-FI_EAVAIL`. `buf` must be a [`crate::Padded`] one.
///
/// # Safety
/// The inline function of C: see this crate's list of them.
#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    // SAFETY: the caller vouches for both; providers older than 1.20 do not write `src_addr`, so it is set
    // first.
    unsafe {
        if !buf.is_null() {
            (*buf).src_addr = FI_ADDR_NOTAVAIL;
        }
        let table = (*cq).ops;
        if table.is_null() {
            return <isize as Absent>::ABSENT;
        }
        match (*table).readerr {
            Some(function) => function(cq, buf, flags),
            None => <isize as Absent>::ABSENT,
        }
    }
}

/// The descriptor to pass with local operations on the region.
///
/// # Safety
/// The region must be live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller vouches for a live region.
    unsafe { (*mr).mem_desc }
}

/// The key for peers to reach the region.
///
/// # Safety
/// The region must be live.
#[inline]
#[must_use]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller vouches for a live region.
    unsafe { (*mr).key }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FI_ENOSYS, Padded};

    #[test]
    fn what_a_provider_has_no_table_for_is_not_implemented() {
        // SAFETY: the objects are pointers and numbers: zero is a value.
        let (mut ep, mut cq, mut cntr): (fid_ep, fid_cq, fid_cntr) = unsafe { std::mem::zeroed() };
        let (none, missing) = (ptr::null_mut(), -(FI_ENOSYS as isize));
        // SAFETY: the objects are there, and without a table nothing is done with the rest.
        unsafe {
            assert_eq!(fi_read(&raw mut ep, none, 0, none, 0, 0, 0, none), missing);
            assert_eq!(fi_inject_write(&raw mut ep, none, 0, 0, 0, 0), missing);
            assert_eq!(fi_send(&raw mut ep, none, 0, none, 0, none), missing);
            assert_eq!(fi_trecv(&raw mut ep, none, 0, none, 0, 0, 0, none), missing);
            assert_eq!(fi_close(&raw mut ep.fid), -FI_ENOSYS);
            let mut entry = Padded::<fi_cq_err_entry>::zeroed();
            assert_eq!(fi_cq_readerr(&raw mut cq, entry.as_mut_ptr(), 0), missing);
            assert_eq!(fi_cntr_read(&raw mut cntr), 0);
        }
    }
}
