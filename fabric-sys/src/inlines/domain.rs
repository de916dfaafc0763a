//! Domains, and the objects opened on fabrics and domains.

use std::ffi::{c_int, c_void};

use super::inlines;
use crate::{
    fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_eq_attr, fi_info, fid, fid_av, fid_cntr, fid_cq, fid_domain,
    fid_ep, fid_eq, fid_fabric,
};

inlines! {
    /// Opens a domain.
    fn fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void) -> c_int
        = (*fabric).ops, domain(fabric, info, domain, context);

    /// Binds an event queue to a domain.
    fn fi_domain_bind(domain: *mut fid_domain, bfid: *mut fid, flags: u64) -> c_int
        = (*domain).fid.ops, bind(&raw mut (*domain).fid, bfid, flags);

    /// Opens an endpoint.
    fn fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int
        = (*domain).ops, endpoint(domain, info, ep, context);

    /// Opens an address vector.
    fn fi_av_open(domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int
        = (*domain).ops, av_open(domain, attr, av, context);

    /// Opens a completion queue.
    fn fi_cq_open(domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int
        = (*domain).ops, cq_open(domain, attr, cq, context);

    /// Opens a counter.
    fn fi_cntr_open(domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr, context: *mut c_void) -> c_int
        = (*domain).ops, cntr_open(domain, attr, cntr, context);

    /// Opens an event queue.
    fn fi_eq_open(fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void) -> c_int
        = (*fabric).ops, eq_open(fabric, attr, eq, context);

    /// Checks that the wait objects of these queues can be waited on now.
    fn fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int
        = (*fabric).ops, trywait(fabric, fids, count);
}
