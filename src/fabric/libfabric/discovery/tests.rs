use std::env;
use std::process::Command;

use super::*;
use crate::wheels;

/// Runs one of the ignored tests below with each libfabric, in a process of its own.
fn with_each_library(test: &str) {
    for library in wheels::each_libfabric() {
        let mut command = Command::new(env::current_exe().unwrap());
        let name = format!("fabric::libfabric::discovery::tests::in_a_process::{test}");
        command.args([&name, "--exact", "--ignored", "--nocapture"]);
        command.env_remove("FABRIC_LIBRARY").env_remove("FI_PROVIDER");
        if let Some(library) = &library {
            command.env("FABRIC_LIBRARY", library);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{library:?}: {text}{errors}");
        assert!(text.contains("1 passed"), "{library:?}: {text}");
    }
}

#[test]
fn each_libfabric_tells_what_tcp_and_shm_can_do() {
    with_each_library("tcp_and_shm");
}

#[test]
fn each_hint_narrows_the_answer_of_each_libfabric() {
    with_each_library("hints");
}

#[test]
fn each_libfabric_has_the_capabilities_under_their_names() {
    with_each_library("capabilities");
}

mod in_a_process {
    use super::*;

    fn library() -> &'static Fabric {
        Fabric::load().unwrap()
    }

    #[test]
    #[ignore = "started by the other tests"]
    fn tcp_and_shm() {
        let all = discover(library(), &Hints::default()).unwrap();
        let rdm = |provider: &str| {
            all.iter()
                .find(|info| info.provider == provider && info.endpoint == "FI_EP_RDM")
                .unwrap_or_else(|| panic!("no {provider} in {all:#?}"))
        };
        let tcp = rdm(&super::super::super::provider::name_in(library(), "tcp"));
        for name in ["FI_MSG", "FI_TAGGED", "FI_RMA", "FI_SEND", "FI_REMOTE_WRITE"] {
            assert!(tcp.capabilities.contains(name), "{tcp:#?}");
        }
        assert_eq!(tcp.protocol, "FI_PROTO_XNET");
        assert!(tcp.inject_bytes >= 64 && tcp.max_message_bytes > 1 << 30, "{tcp:#?}");
        let loopback = all.iter().find(|info| info.address.as_deref() == Some("127.0.0.1")).unwrap();
        assert_eq!((loopback.address_format.as_str(), loopback.domain.as_str()), ("FI_SOCKADDR_IN", "lo"));

        let shm = rdm("shm");
        assert_eq!((shm.address_format.as_str(), shm.protocol.as_str()), ("FI_ADDR_STR", "FI_PROTO_SHM"));
        for name in ["FI_MSG", "FI_TAGGED", "FI_RMA", "FI_ATOMIC"] {
            assert!(shm.capabilities.contains(name), "{shm:#?}");
        }
        assert!(!shm.capabilities.contains("FI_REMOTE_COMM"), "{shm:#?}");
        assert!(shm.mr_mode.contains("FI_MR_VIRT_ADDR"), "{shm:#?}");
        for info in [tcp, shm] {
            assert!(info.threading.starts_with("FI_THREAD_"), "{info:#?}");
            assert!(info.data_progress.starts_with("FI_PROGRESS_"), "{info:#?}");
            assert!(info.message_order.contains("FI_ORDER_SAS"), "{info:#?}");
        }

        let registered = registered(library()).unwrap();
        for name in ["tcp", "shm", "ofi_rxm"] {
            let found: Vec<_> = registered.iter().filter(|provider| provider.name == name).collect();
            assert_eq!(found.len(), 1, "{registered:?}");
            assert!(found[0].version.major > 0, "{registered:?}");
        }
    }

    #[test]
    #[ignore = "started by the other tests"]
    fn hints() {
        let ask = |hints: Hints| discover(library(), &hints).unwrap();
        let shm = Hints { provider: Some("shm".to_owned()), ..Hints::default() };
        let found = ask(shm.clone());
        assert!(!found.is_empty() && found.iter().all(|info| info.provider == "shm"), "{found:#?}");
        for kind in EndpointType::ALL {
            let found = ask(Hints { endpoint: Some(kind), ..Hints::default() });
            assert!(!found.is_empty() && found.iter().all(|info| info.endpoint == kind.name()), "{found:#?}");
        }
        assert_eq!(ask(Hints { endpoint: Some(EndpointType::Msg), ..shm.clone() }), []);
        assert_eq!(ask(Hints { domain: Some("nowhere".to_owned()), ..shm.clone() }), []);
        assert!(!ask(Hints { domain: Some("SHM".to_owned()), ..shm.clone() }).is_empty());
        assert_eq!(ask(Hints { fabric: Some("nowhere".to_owned()), ..shm.clone() }), []);
        let capabilities = ["rma", "FI_ATOMIC"].map(|name| name.parse().unwrap()).to_vec();
        let found = ask(Hints { capabilities: capabilities.clone(), ..Hints::default() });
        assert!(!found.is_empty(), "{capabilities:?}");
        for info in &found {
            assert!(
                ["FI_RMA", "FI_ATOMIC"].iter().all(|name| info.capabilities.contains(*name)),
                "{info:#?}"
            );
        }
        let lo = ask(Hints { domain: Some("lo".to_owned()), ..Hints::default() });
        assert!(!lo.is_empty() && lo.iter().all(|info| info.domain == "lo"), "{lo:#?}");
        let near = ask(Hints {
            node: Some("127.0.0.1".to_owned()),
            service: Some("5000".to_owned()),
            ..Hints::default()
        });
        assert!(near.iter().any(|info| info.provider.contains("tcp")), "{near:#?}");
        let text = || Some("a\0b".to_owned());
        for hints in [
            Hints { node: text(), ..Hints::default() },
            Hints { domain: text(), ..Hints::default() },
            Hints { provider: text(), ..Hints::default() },
        ] {
            let answer = discover(library(), &hints);
            let Err(Error::Call(failure)) = answer else { panic!("{answer:?}") };
            assert_eq!((failure.operation, failure.code), ("fi_getinfo", fabric_sys::FI_EINVAL));
        }
    }

    #[test]
    #[ignore = "started by the other tests"]
    fn capabilities() {
        for capability in Capability::ALL {
            let bits = capability.bit;
            assert_eq!(bits.count_ones(), 1, "{capability}");
            // SAFETY: capabilities are 64 bits.
            let text = unsafe { value_name(library(), (&raw const bits).cast(), fabric_sys::FI_TYPE_CAPS) };
            assert_eq!(flag_names(&text), BTreeSet::from([capability.name().to_owned()]), "{text}");
        }
    }
}

#[test]
fn names_are_read_with_and_without_prefix_in_either_case() {
    for text in ["FI_EP_RDM", "rdm", "RDM", "fi_ep_rdm"] {
        assert_eq!(text.parse(), Ok(EndpointType::Rdm), "{text}");
    }
    for text in ["FI_TAGGED", "tagged", "Tagged"] {
        assert_eq!(text.parse::<Capability>().unwrap().name(), "FI_TAGGED", "{text}");
    }
    let unknown = "stream".parse::<EndpointType>().unwrap_err().to_string();
    assert_eq!(unknown, "'stream' is none of FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM");
    let unknown = "FI_TAG".parse::<Capability>().unwrap_err().to_string();
    assert!(unknown.starts_with("'FI_TAG' is none of FI_MSG, FI_TAGGED, "), "{unknown}");
}

#[test]
fn addresses_are_read_as_what_they_are() {
    let inet = [2, 0, 0x1f, 0x90, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(address_text(fabric_sys::FI_SOCKADDR_IN, &inet), Some("10.0.0.7:8080".to_owned()));
    assert_eq!(address_text(fabric_sys::FI_SOCKADDR_IN, &inet[..7]), None);
    let mut inet6 = [0; 28];
    inet6[8..10].copy_from_slice(&[0xfe, 0x80]);
    inet6[23] = 1;
    assert_eq!(address_text(fabric_sys::FI_SOCKADDR_IN6, &inet6), Some("fe80::1".to_owned()));
    inet6[3] = 80;
    assert_eq!(address_text(fabric_sys::FI_SOCKADDR_IN6, &inet6), Some("[fe80::1]:80".to_owned()));
    assert_eq!(address_text(fabric_sys::FI_ADDR_STR, b"fi_shm://7\0\0"), Some("fi_shm://7".to_owned()));
    assert_eq!(address_text(fabric_sys::FI_ADDR_EFA, &[1; 32]), None);
}

#[test]
fn sets_of_names_are_taken_apart() {
    let expected = BTreeSet::from(["FI_MSG".to_owned(), "FI_RMA".to_owned()]);
    assert_eq!(flag_names("[ FI_MSG, FI_RMA ]"), expected);
    assert_eq!(flag_names("FI_MSG|FI_RMA"), expected);
    assert_eq!(flag_names(""), BTreeSet::new());
}
