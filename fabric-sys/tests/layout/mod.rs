//! Every field of every struct used by a client, at its offset in the headers.

use std::ffi::CStr;
use std::fmt::Write;

use fabric_sys::*;
use libloading::os::unix::Library;

const SYMBOL: &CStr = c"oracle_layout";

struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! layouts {
    ($($name:ident: $($field:ident)*;)*) => {
        fn layouts() -> Vec<Layout> {
            vec![$(Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            }),*]
        }
    };
}

layouts! {
    fi_info: next caps mode addr_format src_addrlen dest_addrlen src_addr dest_addr handle tx_attr rx_attr
        ep_attr domain_attr fabric_attr nic;
    fi_tx_attr: caps mode op_flags msg_order comp_order inject_size size iov_limit rma_iov_limit tclass;
    fi_rx_attr: caps mode op_flags msg_order comp_order total_buffered_recv size iov_limit;
    fi_ep_attr: type_ protocol protocol_version max_msg_size msg_prefix_size max_order_raw_size
        max_order_war_size max_order_waw_size mem_tag_format tx_ctx_cnt rx_ctx_cnt auth_key_size auth_key;
    fi_domain_attr: domain name threading control_progress data_progress resource_mgmt av_type mr_mode
        mr_key_size cq_data_size cq_cnt ep_cnt tx_ctx_cnt rx_ctx_cnt max_ep_tx_ctx max_ep_rx_ctx
        max_ep_stx_ctx max_ep_srx_ctx cntr_cnt mr_iov_limit caps mode auth_key auth_key_size max_err_data
        mr_cnt tclass;
    fi_fabric_attr: fabric name prov_name prov_version api_version;
    fi_device_attr: name device_id device_version vendor_id driver firmware;
    fi_link_attr: address mtu speed state network_type;
    fi_av_attr: type_ rx_ctx_bits count ep_per_node name map_addr flags;
    fi_cq_attr: size flags format wait_obj signaling_vector wait_cond wait_set;
    fi_cntr_attr: events wait_obj wait_set flags;
    fi_eq_attr: size flags wait_obj signaling_vector wait_set;
    fi_mr_attr: iov_count access offset requested_key context auth_key_size auth_key iface device;
    fi_cq_tagged_entry: op_context flags len buf data tag;
    fi_cq_data_entry: op_context flags len buf data;
    fi_cq_err_entry: op_context flags len buf data tag olen err prov_errno err_data err_data_size;
    fi_eq_entry: fid context data;
    fi_eq_err_entry: fid context data err prov_errno err_data err_data_size;
    fi_msg: msg_iov desc iov_count addr context data;
    fi_msg_tagged: msg_iov desc iov_count addr tag ignore context data;
    fi_msg_rma: msg_iov desc iov_count addr rma_iov rma_iov_count context data;
    fi_rma_iov: addr len key;
    fi_context: internal;
    fi_context2: internal;
    fid: fclass context ops;
    fid_fabric: fid ops api_version;
    fid_domain: fid ops mr;
    fid_ep: fid ops cm msg rma tagged atomic collective;
    fid_av: fid ops;
    fid_cq: fid ops;
    fid_cntr: fid ops;
    fid_eq: fid ops;
    fid_mr: fid mem_desc key;
    fid_nic: fid device_attr bus_attr link_attr prov_attr;
    fi_ops: size close bind control ops_open tostr ops_set;
    fi_ops_fabric: size domain passive_ep eq_open wait_open trywait domain2;
    fi_ops_domain: size av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx srx_ctx
        query_atomic query_collective endpoint2;
    fi_ops_ep: size cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left;
    fi_ops_cm: size setname getname getpeer connect listen accept reject shutdown join;
    fi_ops_msg: size recv recvv recvmsg send sendv sendmsg inject senddata injectdata;
    fi_ops_tagged: size recv recvv recvmsg send sendv sendmsg inject senddata injectdata;
    fi_ops_rma: size read readv readmsg write writev writemsg inject writedata injectdata;
    fi_ops_av: size insert insertsvc insertsym remove lookup straddr av_set;
    fi_ops_cq: size read readfrom readerr sread sreadfrom signal strerror;
    fi_ops_cntr: size read readerr add set wait adderr seterr;
    fi_ops_eq: size read readerr write sread strerror;
    fi_ops_mr: size reg regv regattr;
}

/// An array of the header's sizes and offsets, in the order of `layouts`.
pub(crate) fn c_source() -> String {
    let mut source = String::from("const size_t oracle_layout[] = {\n");
    for layout in layouts() {
        writeln!(source, "sizeof(struct {}),", layout.name).expect("a string takes it");
        for (field, _) in layout.fields {
            let field = field.trim_end_matches('_');
            writeln!(source, "offsetof(struct {}, {field}),", layout.name).expect("a string takes it");
        }
    }
    source + "};\n"
}

pub(crate) fn compare(library: &Library) {
    // SAFETY: the C file defines an array of this name.
    let mut theirs =
        unsafe { *library.get::<*const usize>(SYMBOL.to_bytes_with_nul()).expect("in the C file") };
    let mut next = || {
        // SAFETY: the array was made from the same list, so it has an element for every call.
        let value = unsafe { *theirs };
        theirs = theirs.wrapping_add(1);
        value
    };
    for layout in layouts() {
        let size = next();
        // Structs and tables grow at their end, so an older header's are shorter and a newer one's longer.
        assert!(size > 0 && size.abs_diff(layout.size) <= 64, "struct {} has {size} bytes in C", layout.name);
        for (field, offset) in layout.fields {
            assert_eq!(next(), offset, "{}.{field}", layout.name);
        }
    }
}
