//! Tests of libfabric's objects.

use super::*;

#[test]
fn what_the_kernel_may_write_is_not_left_open() {
    let library = Fabric::load().unwrap();
    let name = provider::name_in(library, "tcp");
    let list = provider::InfoList::get(library, Some(&name), Some(c"127.0.0.1")).unwrap();
    let info = list.iter().find(|info| info.provider() == name).unwrap();
    let domain = Domain::open(library, info).unwrap();
    let (mut objects, _) = EndpointObjects::open(domain, library, info, EndpointSettings::default()).unwrap();
    // Not the variable of whoever runs this.
    objects.uring = false;
    assert_eq!(objects.must_stay_open(), library.version() > Version::new(1, 17));
    objects.uring = true;
    assert!(!objects.must_stay_open());
}

#[test]
fn what_a_peer_sent_for_an_address_is_followed_by_zeros() {
    for len in [0, 1, 511, 512, 513, 4096] {
        let address = vec![b'x'; len];
        let padded = padded(&address);
        assert_eq!(padded[..len], address);
        assert_eq!(padded[len..], [0; MAX_ADDRESS_LEN], "{len}");
    }
}
