use std::ffi::{CString, c_void};

use super::abi::{GROUP, Plugin, SUCCESS, V2, V3, V4, V5, V6, element_bytes, event_handle};
use super::*;
use crate::nccl_choice::Bytes;
use record::Algorithm;

/// Serialises the tests: the plugin's state is global.
pub(in super::super) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    set_enabled(false);
    clear_choices();
    turn
}

/// A descriptor with C's layout, on a machine with 8-byte pointers.
#[repr(C, align(8))]
struct Raw([u8; 128]);

impl Raw {
    /// Unset fields have arbitrary bytes.
    fn new(kind: c_int, kind_bytes: usize, rank: c_int) -> Self {
        let mut raw = Self([0xa5; 128]);
        raw.put(0, &(kind as u64).to_le_bytes()[..kind_bytes]);
        raw.put(16, &rank.to_le_bytes());
        raw
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn text(&mut self, at: usize, text: &CStr) {
        self.put(at, &(text.as_ptr() as usize).to_le_bytes());
    }
}

/// Offsets of the fields of a version of the interface (`offsetof`).
struct Layout {
    kind_bytes: usize,
    function: usize,
    count: usize,
    data_type: usize,
    channels: usize,
    algorithm: usize,
    part_count: usize,
    part_channels: Option<usize>,
}

const LAYOUT_V2: Layout = Layout {
    kind_bytes: 1,
    function: 48,
    count: 72,
    data_type: 88,
    channels: 104,
    algorithm: 112,
    part_count: 64,
    part_channels: None,
};
const LAYOUT_V3: Layout = Layout { channels: 96, algorithm: 104, ..LAYOUT_V2 };
const LAYOUT_V4: Layout = Layout {
    kind_bytes: 1,
    function: 32,
    count: 56,
    data_type: 72,
    channels: 80,
    algorithm: 88,
    part_count: 48,
    part_channels: Some(60),
};
const LAYOUT_V5: Layout = Layout { kind_bytes: 8, ..LAYOUT_V4 };

struct Collective<'a> {
    function: &'a CStr,
    count: usize,
    data_type: &'a CStr,
    algorithm: &'a CStr,
    protocol: &'a CStr,
    channels: u8,
}

const RING: Collective<'_> = Collective {
    function: c"AllReduce",
    count: 1000,
    data_type: c"ncclBfloat16",
    algorithm: c"RING",
    protocol: c"LL128",
    channels: 24,
};

impl Layout {
    fn collective(&self, rank: c_int, recorded: &Collective<'_>) -> Raw {
        let mut raw = Raw::new(COLLECTIVE, self.kind_bytes, rank);
        raw.text(self.function, recorded.function);
        raw.put(self.count, &recorded.count.to_le_bytes());
        raw.text(self.data_type, recorded.data_type);
        raw.put(self.channels, &[recorded.channels]);
        raw.text(self.algorithm, recorded.algorithm);
        raw.text(self.algorithm + 8, recorded.protocol);
        raw
    }

    fn part(&self, rank: c_int, peer: c_int, count: usize, channels: u8) -> Raw {
        let mut raw = Raw::new(SEND_OR_RECEIVE, self.kind_bytes, rank);
        raw.put(self.part_count, &count.to_le_bytes());
        raw.put(self.part_count + 8, &peer.to_le_bytes());
        if let Some(at) = self.part_channels {
            raw.put(at, &[channels]);
        }
        raw
    }
}

/// Calls the plugin as NCCL does, and returns the event's handle.
fn start<I, D>(plugin: &Plugin<I, D>, raw: &Raw) -> *mut c_void {
    let mut event = event_handle().wrapping_byte_add(64);
    // SAFETY: the bytes are a descriptor of this version, whose texts live.
    let result = unsafe { (plugin.start_event)(event_handle(), &mut event, ptr::from_ref(raw).cast()) };
    assert_eq!(result, SUCCESS);
    event
}

/// Reports a collective of `count` floats through the newest version, or, without channels, through a version
/// without them.
pub(in super::super) fn tell(function: &str, count: usize, algorithm: &str, channels: Option<u32>) {
    let (function, algorithm) = (CString::new(function).unwrap(), CString::new(algorithm).unwrap());
    let recorded = Collective {
        function: &function,
        count,
        data_type: c"ncclFloat32",
        algorithm: &algorithm,
        channels: channels.unwrap_or(99) as u8,
        ..RING
    };
    set_enabled(true);
    match channels {
        Some(_) => start(&V6, &LAYOUT_V5.collective(0, &recorded)),
        None => start(&V3, &LAYOUT_V3.collective(0, &recorded)),
    };
    set_enabled(false);
}

fn choice(collective: Option<&str>, bytes: Bytes, named: (&str, Option<&str>, Option<u32>)) -> Choice {
    let (algorithm, protocol, channels) = named;
    Choice {
        collective: collective.map(str::to_owned),
        bytes,
        algorithm: Algorithm {
            algorithm: algorithm.to_owned(),
            protocol: protocol.map(str::to_owned),
            channels,
        },
    }
}

/// Checks one version of the interface, with NCCL's mask.
fn version<I, D>(plugin: &Plugin<I, D>, layout: &Layout, mask: &AtomicI32, has_channels: bool) {
    // SAFETY: a C string, as NCCL takes it for.
    assert_eq!(unsafe { CStr::from_ptr(plugin.name) }, c"nccl-bench");
    assert_eq!(mask.load(Ordering::Relaxed), 0, "nothing is recorded unless it is asked for");
    let collective = layout.collective(0, &RING);
    start(plugin, &collective);
    assert_eq!(recorded_choices(), [], "a graph's late events");

    set_enabled(true);
    assert_eq!(mask.load(Ordering::Relaxed), 1 << 1 | 1 << 2 | 1 << 12);
    let group = start(plugin, &Raw::new(GROUP, layout.kind_bytes, 0));
    assert!(!group.is_null(), "else NCCL 2.27 does not tell what is in it");
    for _ in 0..3 {
        assert!(start(plugin, &collective).is_null());
    }
    start(plugin, &layout.collective(1, &Collective { algorithm: c"TREE", ..RING }));
    start(plugin, &layout.part(0, 3, 10, 8));
    start(plugin, &layout.part(0, 0, 10, 9));
    start(plugin, &layout.part(0, 3, 0, 1));
    start(plugin, &layout.part(2, 3, 10, 7));
    // A call, reported only by versions from v5 on.
    if layout.kind_bytes == 8 {
        start(plugin, &Raw::new(1 << 9, 8, 0));
    }
    set_enabled(false);
    assert_eq!(mask.load(Ordering::Relaxed), 0);

    let known = |channels: u32| has_channels.then_some(channels);
    let ring = choice(Some("allreduce"), Bytes::Count(2000), ("ring", Some("ll128"), known(24)));
    let part = choice(None, Bytes::Part, ("p2p", None, known(8)));
    assert_eq!(recorded_choices(), [(ring, 3), (part, 1)]);
    clear_choices();
    assert_eq!(recorded_choices(), []);

    // SAFETY: as NCCL calls them.
    unsafe {
        assert_eq!((plugin.record_event_state)(group, 0, ptr::null_mut()), SUCCESS);
        assert_eq!((plugin.stop_event)(group), SUCCESS);
        // 2.24 also stops events without a handle.
        assert_eq!((plugin.stop_event)(ptr::null_mut()), SUCCESS);
        assert_eq!((plugin.finalize)(event_handle()), SUCCESS);
    }
}

#[test]
fn each_version_of_the_interface_is_understood() {
    static MASK: AtomicI32 = AtomicI32::new(0);

    let _turn = turn();
    let null = ptr::null();
    let begins = |init: &dyn Fn(*mut *mut c_void) -> c_int| {
        let mut context = ptr::null_mut();
        assert_eq!(init(&mut context), SUCCESS);
        assert!(!context.is_null(), "else NCCL does not take it for one");
    };
    // SAFETY: every call gets a place for a context, and a static mask.
    unsafe {
        begins(&|context| (V2.init)(context, MASK.as_ptr()));
        version(&V2, &LAYOUT_V2, &MASK, false);
        begins(&|context| (V3.init)(context, MASK.as_ptr()));
        version(&V3, &LAYOUT_V3, &MASK, false);
        begins(&|context| (V4.init)(context, MASK.as_ptr(), c"".as_ptr(), 7, 1, 8, 3, null));
        version(&V4, &LAYOUT_V4, &MASK, true);
        begins(&|context| (V5.init)(context, 7, MASK.as_ptr(), null.cast(), 1, 8, 3, null));
        version(&V5, &LAYOUT_V5, &MASK, true);
        begins(&|context| (V6.init)(context, 7, MASK.as_ptr(), null.cast(), 1, 8, 3, null));
        version(&V6, &LAYOUT_V5, &MASK, true);
    }

    // The start of another communicator meanwhile changes nothing.
    set_enabled(true);
    begins(&|context| {
        // SAFETY: as above.
        unsafe { (V6.init)(context, 8, MASK.as_ptr(), null.cast(), 1, 8, 0, null) }
    });
    assert_eq!(MASK.load(Ordering::Relaxed), EVENTS);
    set_enabled(false);
}

#[test]
fn copies_by_copy_engines_are_told_by_the_newest_version() {
    let _turn = turn();
    let mut raw = Raw::new(COPIES, 8, 0);
    raw.text(32, c"AlltoAll");
    raw.put(56, &4096_usize.to_le_bytes());
    raw.text(72, c"ncclFloat8e4m3");
    set_enabled(true);
    start(&V6, &raw);
    set_enabled(false);
    let copied = choice(Some("alltoall"), Bytes::Count(4096), ("copy_engine", None, None));
    assert_eq!(recorded_choices(), [(copied, 1)]);
}

#[test]
fn what_nccl_has_no_name_for_is_not_known() {
    let _turn = turn();
    set_enabled(true);
    start(&V6, &LAYOUT_V5.collective(0, &Collective { algorithm: c"Unknown", ..RING }));
    let mut without = LAYOUT_V5.collective(0, &RING);
    without.put(LAYOUT_V5.function, &[0; 8]);
    start(&V6, &without);
    assert_eq!(recorded_choices(), []);
    start(&V6, &LAYOUT_V5.collective(0, &Collective { protocol: c"Unknown", channels: 0, ..RING }));
    set_enabled(false);
    assert_eq!(
        recorded_choices(),
        [(choice(Some("allreduce"), Bytes::Count(2000), ("ring", None, None)), 1)]
    );
}

#[test]
fn what_is_told_takes_no_more_memory_than_it_needs() {
    let _turn = turn();
    set_enabled(true);
    for count in 0..2 * MOST_CHOICES {
        start(&V6, &LAYOUT_V5.collective(0, &Collective { count: count + 1, ..RING }));
    }
    set_enabled(false);
    assert_eq!(recorded_choices().len(), MOST_CHOICES);
}

#[test]
fn the_size_of_an_element_is_in_the_name_of_its_type() {
    let sizes = ["int8", "uint8", "int32", "uint64", "float16", "float64", "bfloat16", "float8e5m2"]
        .map(|name| element_bytes(3, &format!("nccl{name}")));
    assert_eq!(sizes, [3, 3, 12, 24, 6, 24, 6, 3].map(Some));
    assert_eq!(element_bytes(3, "unknown"), None);
    assert_eq!(element_bytes(usize::MAX, "ncclint64"), None);
}
