//! NCCL's parameters and encryption.

use collectives::nccl::{Error, ResultCode};

use crate::fake::{Fake, Knob};
use crate::not_allowed;

#[test]
fn all_parameters_are_listed_with_their_values() {
    let fake = Fake::new();
    let parameters = fake.library().parameters().unwrap();
    let parameters: Vec<_> = parameters
        .iter()
        .map(|(name, value)| (name.trim_start_matches("NCCL_FAKE_"), value.as_str()))
        .collect();
    assert_eq!(
        parameters,
        [
            ("I8", "-8"),
            ("I16", "-1600"),
            ("I32", "-320000"),
            ("I64", "-9223372036854775808"),
            ("U8", "200"),
            ("U16", "60000"),
            ("U32", "4000000000"),
            ("U64", "ALL"),
            ("TEXT", "WARN,ä"),
            ("EMPTY", ""),
        ]
    );
}

#[test]
fn a_parameter_is_read_by_its_name() {
    let fake = Fake::new();
    let parameter = |name: &str| fake.library().parameter(&format!("NCCL_FAKE_{name}"));
    assert_eq!(parameter("I64").unwrap(), "-9223372036854775808");
    assert_eq!(parameter("TEXT").unwrap(), "WARN,ä");
    assert_eq!(parameter("EMPTY").unwrap(), "");
    let unknown = parameter("NONE").unwrap_err();
    assert!(
        matches!(unknown, Error::Nccl { operation: "ncclParamGetParameter", code: ResultCode(4), .. }),
        "{unknown}"
    );
    not_allowed(parameter("\0"), "ncclParamGetParameter: the text must not contain a NUL byte");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn parameters_are_dumped_and_connections_encrypted() {
    let fake = Fake::new();
    let library = fake.library();
    library.dump_parameters().unwrap();
    library.set_encryption(Some("secret")).unwrap();
    library.set_encryption(None).unwrap();
    assert_eq!(fake.log(), ["dump parameters", "encryption mode 1 psk secret", "encryption mode 0 psk null"]);
    let key = library.set_encryption(Some("sec\0ret"));
    not_allowed(key, "ncclSetEncryption: the text must not contain a NUL byte");
    fake.set(Knob::ManagementResult, 5);
    let error = library.set_encryption(None).unwrap_err();
    assert!(
        matches!(error, Error::Nccl { operation: "ncclSetEncryption", code: ResultCode(5), .. }),
        "{error}"
    );
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn libraries_without_parameters_say_so() {
    let fake = Fake::new();
    let library = fake.library_2_28();
    let missing = |error: Error, wanted: &str| {
        assert!(matches!(error, Error::MissingSymbol(_)), "{error}");
        assert!(error.to_string().starts_with(wanted), "{error}");
    };
    missing(library.parameters().unwrap_err(), "ncclParamGetAllParameterKeys needs NCCL 2.30");
    missing(library.parameter("NCCL_DEBUG").unwrap_err(), "ncclParamGetParameter needs NCCL 2.30");
    missing(library.dump_parameters().unwrap_err(), "ncclParamDumpAll needs NCCL 2.30");
    missing(library.set_encryption(None).unwrap_err(), "ncclSetEncryption needs NCCL 2.32");
}
