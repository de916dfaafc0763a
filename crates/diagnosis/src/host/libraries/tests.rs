use super::cache::tests::make_cache;
use super::*;
use crate::host::sample::Machine;

#[test]
fn libraries_are_known_by_their_file_names() {
    let known = kind_of_file;
    let pair = |kind, name: &str| Some((kind, name.to_owned()));
    assert_eq!(known("libnccl.so.2.28.9"), pair(LibraryKind::Nccl, "libnccl.so.2"));
    assert_eq!(known("libnccl-net-ofi.so"), pair(LibraryKind::NetPlugin, "libnccl-net-ofi.so"));
    assert_eq!(known("libcuda.so.580.95.05"), pair(LibraryKind::Driver, "libcuda.so.1"));
    assert_eq!(known("libibverbs.so.1"), pair(LibraryKind::Verbs, "libibverbs.so.1"));
    assert_eq!(known("libnccl.source"), None);
    assert_eq!(known("libcudart.so.12"), None);
}

/// This program stands in for libraries: it is an ELF file for this processor.
#[test]
fn the_loader_s_order_tells_which_file_is_taken() {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let machine = Machine::new()
        .with_link("usr/lib/libnccl.so.2", own)
        .with_link("opt/conda/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", own)
        .with_file("home/user/lib/libnccl.so.2", "no library")
        .with_file("usr/lib64/libfabric.so.1.25.2", "no library")
        .with_file("opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "no library");
    let bytes =
        make_cache(&[("libnccl.so.2", "/usr/lib/libnccl.so.2"), ("libnccl.so.2", "/gone/libnccl.so.2")]);
    std::fs::create_dir_all(machine.root().join("etc")).unwrap();
    std::fs::write(machine.root().join("etc/ld.so.cache"), bytes).unwrap();
    let paths =
        SearchPaths { loader: Some("relative:/home/user/lib::/none".to_owned()), ..SearchPaths::default() };
    let found = find_libraries(machine.root(), &paths);
    let told: Vec<(&str, &str, bool, bool)> = found
        .iter()
        .map(|library| {
            (library.path.as_str(), library.found.as_str(), library.first, library.problem.is_some())
        })
        .collect();
    assert_eq!(
        told,
        [
            ("/home/user/lib/libnccl.so.2", "LD_LIBRARY_PATH", false, true),
            ("/usr/lib/libnccl.so.2", "ld.so.cache", true, false),
            ("/usr/lib64/libfabric.so.1.25.2", "/usr/lib64", false, true),
            ("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "/opt/amazon/ofi-nccl/lib", false, true),
        ]
    );
    assert!(found[1].build_id.as_ref().is_none_or(|id| id.len() >= 16));
}
