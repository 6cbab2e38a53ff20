//! The part of libfabric's C interface that the engine calls.
//!
//! libfabric exports six functions that are used here. The rest of its interface is inline functions over tables of
//! function pointers, so the layouts of those tables are its binary interface. libfabric only ever appends to them.
//! Structures that libfabric allocates may be longer than they are here. Structures that the engine allocates end with
//! reserved space, because a newer library may look at fields that an older header lacks.

use std::ffi::{c_char, c_int, c_void};

/// Declares C structures, and lists their layouts for the test that compares them with the headers.
macro_rules! structures {
    ($($(#[doc = $doc:literal])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Debug)]
            pub(crate) struct $name { $(pub $field: $kind),* }
        )*

        /// Name, size, and the offset of each field.
        #[cfg(test)]
        pub(crate) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            )),*]
        }
    };
}

/// A function that is not called: its place in a table.
pub(crate) type Unused = *const c_void;
/// Room for fields that newer versions append.
pub(crate) type Reserve = [u64; 8];

structures! {
    /// What every object of libfabric begins with.
    fid { fclass: usize, context: *mut c_void, ops: *const fi_ops }
    fi_ops {
        size: usize,
        close: unsafe extern "C" fn(*mut fid) -> c_int,
        bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    }
    fi_tx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64, inject_size: usize, size: usize,
    }
    fi_rx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64, total_buffered_recv: usize, size: usize,
    }
    fi_ep_attr { type_: u32, protocol: u32, protocol_version: u32, max_msg_size: usize }
    fi_domain_attr {
        domain: *mut c_void, name: *mut c_char, threading: u32, control_progress: u32, data_progress: u32,
        resource_mgmt: u32, av_type: u32, mr_mode: c_int, mr_key_size: usize, cq_data_size: usize, cq_cnt: usize,
    }
    fi_fabric_attr {
        fabric: *mut c_void, name: *mut c_char, prov_name: *mut c_char, prov_version: u32, api_version: u32,
    }
    fi_info {
        next: *mut fi_info, caps: u64, mode: u64, addr_format: u32, src_addrlen: usize, dest_addrlen: usize,
        src_addr: *mut c_void, dest_addr: *mut c_void, handle: *mut fid, tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr, ep_attr: *mut fi_ep_attr, domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr, nic: *mut c_void,
    }
    fid_fabric { fid: fid, ops: *const fi_ops_fabric, api_version: u32 }
    fi_ops_fabric {
        size: usize,
        domain: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
    }
    fid_domain { fid: fid, ops: *const fi_ops_domain, mr: *const fi_ops_mr }
    fi_ops_domain {
        size: usize,
        av_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int,
        cq_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int,
        endpoint: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    }
    fi_ops_mr {
        size: usize, reg: Unused, regv: Unused,
        regattr: unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
    }
    fid_mr { fid: fid, mem_desc: *mut c_void, key: u64 }
    fi_mr_attr {
        mr_iov: *const iovec, iov_count: usize, access: u64, offset: u64, requested_key: u64, context: *mut c_void,
        auth_key_size: usize, auth_key: *mut u8, iface: u32, device: u64, reserve: Reserve,
    }
    iovec { iov_base: *mut c_void, iov_len: usize }
    fi_av_attr {
        type_: u32, rx_ctx_bits: c_int, count: usize, ep_per_node: usize, name: *const c_char, map_addr: *mut c_void,
        flags: u64, reserve: Reserve,
    }
    fid_av { fid: fid, ops: *const fi_ops_av }
    fi_ops_av {
        size: usize,
        insert: unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    }
    fi_cq_attr {
        size: usize, flags: u64, format: u32, wait_obj: u32, signaling_vector: c_int, wait_cond: u32,
        wait_set: *mut c_void, reserve: Reserve,
    }
    fid_cq { fid: fid, ops: *const fi_ops_cq }
    fi_ops_cq {
        size: usize,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
        readfrom: Unused,
        readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
        sread: Unused, sreadfrom: Unused, signal: Unused,
        strerror: unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }
    fi_cq_data_entry { op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64 }
    fi_cq_err_entry {
        op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64, tag: u64, olen: usize, err: c_int,
        prov_errno: c_int, err_data: *mut c_void, err_data_size: usize, reserve: Reserve,
    }
    fid_ep {
        fid: fid, ops: Unused, cm: *const fi_ops_cm, msg: Unused, rma: *const fi_ops_rma,
    }
    fi_ops_cm {
        size: usize, setname: Unused,
        getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
    }
    fi_ops_rma {
        size: usize, read: Unused, readv: Unused, readmsg: Unused,
        write: unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void,
        ) -> isize,
        writev: Unused,
        writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
        inject: Unused,
        writedata: unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void,
        ) -> isize,
    }
    fi_msg_rma {
        msg_iov: *const iovec, desc: *mut *mut c_void, iov_count: usize, addr: u64, rma_iov: *const fi_rma_iov,
        rma_iov_count: usize, context: *mut c_void, data: u64,
    }
    fi_rma_iov { addr: u64, len: usize, key: u64 }
}

/// Constants of the headers, and the test that compares them.
macro_rules! constants {
    ($($name:ident: $kind:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $kind = $value;)*

        /// Name and value of each constant.
        #[cfg(test)]
        pub(crate) fn constants() -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), $name as u64)),*]
        }
    };
}

constants! {
    FI_RMA: u64 = 1 << 2;
    FI_READ: u64 = 1 << 8;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_TRANSMIT: u64 = 1 << 11;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_REMOTE_CQ_DATA: u64 = 1 << 17;
    FI_COMPLETION: u64 = 1 << 24;
    FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    FI_CONTEXT: u64 = 1 << 59;
    FI_CONTEXT2: u64 = 1 << 52;
    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_MR_ENDPOINT: c_int = 1 << 9;
    FI_EP_RDM: u32 = 3;
    FI_THREAD_DOMAIN: u32 = 3;
    FI_PROGRESS_MANUAL: u32 = 2;
    FI_RM_ENABLED: u32 = 2;
    FI_AV_TABLE: u32 = 2;
    FI_CQ_FORMAT_DATA: u32 = 3;
    FI_WAIT_NONE: u32 = 0;
    FI_HMEM_SYSTEM: u32 = 0;
    FI_SOCKADDR_IN: u32 = 2;
    FI_ENABLE: c_int = 6;
    FI_EAGAIN: c_int = 11;
    FI_ENODATA: c_int = 61;
    FI_EAVAIL: c_int = 259;
    FI_ENORX: c_int = 269;
}

/// `FI_VERSION` of the headers.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}
