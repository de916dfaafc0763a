//! Texts of errors, and the ids that ranks exchange.

use std::path::PathBuf;

use collectives::nccl::{Communicator, Error, ResultCode, UniqueId};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use crate::fake::Fake;

#[test]
fn a_failure_names_operation_code_detail_and_advice() {
    let error = Error::Nccl {
        operation: "ncclAllReduce",
        code: ResultCode(6),
        meaning: "remote process exited or there was a network error".into(),
        detail: "connection closed by peer".into(),
    };
    assert_eq!(
        error.to_string(),
        "ncclAllReduce failed with ncclRemoteError (6): remote process exited or there was a network error \
         (NCCL's last warning: connection closed by peer); another rank or the network failed: look at the \
         other ranks"
    );
}

#[test]
fn unknown_codes_keep_their_number() {
    assert_eq!(ResultCode(4711).to_string(), "code 4711, unknown to this build");
    assert_eq!(ResultCode(8).to_string(), "ncclTimeout (8)");
}

#[test]
fn without_a_visible_gpu_the_error_names_the_variable_that_hides_them() {
    let text = |visible: Option<&str>| Error::NoDevice { visible: visible.map(PathBuf::from) }.to_string();
    assert_eq!(
        text(Some("")),
        "no CUDA device: the driver is installed, but shows this process no GPU; CUDA_VISIBLE_DEVICES is \
         \"\": it must name existing GPUs, and a container must have access to them"
    );
    assert!(text(None).contains("CUDA_VISIBLE_DEVICES is not set"));
    let reason = "cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".to_owned();
    assert_eq!(
        Error::NoDriver { reason }.to_string(),
        "no CUDA driver: cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; install the NVIDIA driver, or \
         inside a container pass the GPUs in"
    );
}

#[test]
fn an_id_travels_as_bytes() {
    let fake = Fake::new();
    let id = fake.id();
    assert_eq!(&id.as_bytes()[..8], b"fake id\0");
    assert_eq!(format!("{id:?}"), "UniqueId(66616b6520696400..)");
    let same = UniqueId::from_bytes(*id.as_bytes());
    assert_eq!(same, id);
    let join = |id: &UniqueId| {
        Communicator::builder(fake.library(), &fake.stream(0)).rank(0, 2).id(id).init().map(drop)
    };
    join(&same).unwrap();
    // Bytes other than ASCII are passed to NCCL too.
    let mut bytes = *id.as_bytes();
    bytes[0] = 0xe6;
    let error = join(&UniqueId::from_bytes(bytes)).unwrap_err();
    assert!(matches!(error, Error::Nccl { code: ResultCode(4), .. }), "{error}");
}

#[test]
fn result_codes_have_nccls_names() {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
    ];
    for (number, name) in (0..).zip(names) {
        assert_eq!(ResultCode(number).name(), Some(name));
        assert_eq!(format!("{:?}", ResultCode(number)), format!("{name} ({number})"));
    }
    assert_eq!(ResultCode(9).name(), None);
    assert_eq!(format!("{:?}", ResultCode(9)), "code 9, unknown to this build");
}

#[test]
fn failures_of_nccl_say_what_to_do() {
    let advice = [
        (1, "a CUDA call failed: check nvidia-smi and the device's free memory"),
        (2, "a system call failed: check shared memory, limits and the network"),
        (3, "set NCCL_DEBUG=WARN to see NCCL's own report"),
        (4, "check the arguments, and that all ranks make the same call; NCCL_DEBUG=WARN shows the reason"),
        (5, "check the arguments, and that all ranks make the same call; NCCL_DEBUG=WARN shows the reason"),
        (6, "another rank or the network failed: look at the other ranks"),
        (8, "another rank did not answer in time: look at the other ranks"),
        (9, "set NCCL_DEBUG=WARN to see NCCL's own report"),
    ];
    for (code, advice) in advice {
        let (meaning, detail) = ("words".into(), "".into());
        let error = Error::Nccl { operation: "ncclSend", code: ResultCode(code), meaning, detail };
        let text = error.to_string();
        assert!(text.ends_with(&format!("; {advice}")), "{text}");
    }
}

#[test]
fn failures_of_the_driver_say_what_to_do() {
    // The text contains the names.
    let _fake = Fake::new();
    let advice = [
        (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "the device has too little free memory: see nvidia-smi"),
        (CUresult::CUDA_ERROR_INVALID_DEVICE, "see device_count for the number of devices"),
        (
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            "nvidia-smi and the kernel's log (dmesg) show the state of the device",
        ),
    ];
    for (code, advice) in advice {
        let text = Error::Cuda { operation: "cuMemAlloc", error: DriverError(code) }.to_string();
        assert!(text.starts_with("cuMemAlloc failed: ") && text.ends_with(&format!("; {advice}")), "{text}");
    }
}
