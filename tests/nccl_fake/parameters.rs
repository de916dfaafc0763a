//! NCCL's parameters and encryption.

use collectives::nccl::{Error, ParameterValue, ResultCode};

use crate::fake::{Fake, Knob};

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
fn a_parameter_is_read_as_its_type_and_no_other() {
    let fake = Fake::new();
    let parameter = |name: &str| fake.library().parameter(&format!("NCCL_FAKE_{name}")).unwrap();
    fn is<T: ParameterValue + PartialEq + std::fmt::Debug>(result: Result<T, Error>, wanted: T) {
        assert_eq!(result.unwrap(), wanted);
    }
    is(parameter("I8").get(), -8i8);
    is(parameter("I16").get(), -1600i16);
    is(parameter("I32").get(), -320_000i32);
    is(parameter("I64").get(), i64::MIN);
    is(parameter("U8").get(), 200u8);
    is(parameter("U16").get(), 60_000u16);
    is(parameter("U32").get(), 4_000_000_000u32);
    is(parameter("U64").get(), u64::MAX);
    let error = parameter("I8").get::<u8>().unwrap_err();
    assert!(matches!(error, Error::Nccl { operation: "ncclParamGetU8", code: ResultCode(4), .. }), "{error}");
    assert!(parameter("I64").get::<i32>().is_err());
    assert!(parameter("TEXT").get::<i64>().is_err());
    assert_eq!(parameter("TEXT").text().unwrap(), "WARN,ä");
    assert_eq!(parameter("EMPTY").text().unwrap(), "");
    assert!(matches!(parameter("U8").text(), Err(Error::Nccl { operation: "ncclParamGetStr", .. })));
    assert_eq!(parameter("I16").bytes().unwrap(), (-1600i16).to_le_bytes());
    assert_eq!(parameter("TEXT").bytes().unwrap(), "WARN,ä\0".as_bytes());
    assert_eq!(format!("{:?}", parameter("TEXT")), "Parameter(Ok(\"WARN,ä\"))");
    let unknown = fake.library().parameter("NCCL_FAKE_NONE").unwrap_err();
    assert!(matches!(unknown, Error::Nccl { operation: "ncclParamBind", code: ResultCode(4), .. }));
    assert!(matches!(fake.library().parameter("NCCL\0"), Err(Error::Text { .. })));
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
    let error = library.set_encryption(Some("sec\0ret")).unwrap_err();
    assert!(matches!(error, Error::Text { what: "the pre-shared key" }), "{error}");
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
    missing(library.parameter("NCCL_DEBUG").unwrap_err(), "ncclParamBind needs NCCL 2.30");
    missing(library.dump_parameters().unwrap_err(), "ncclParamDumpAll needs NCCL 2.30");
    missing(library.set_encryption(None).unwrap_err(), "ncclSetEncryption needs NCCL 2.32");
}
