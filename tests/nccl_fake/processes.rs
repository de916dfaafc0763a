//! Decisions that a process makes once or reads from its environment: each case runs in a process of its own.

use std::env;
use std::process::{Command, Stdio};

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Config, Error, Graph, cuda, device_count};

use crate::fake::{self, Fake, Knob, worker};

const CASE: &str = "COLLECTIVES_TEST_CASE";
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

/// Runs the test again for each case, in a process whose variable has the case's value and whose NCCL is a
/// fake. That process calls `body`.
pub(crate) fn in_processes(test: &str, cases: &[(&str, Option<&str>)], body: impl Fn(&str)) {
    if let Ok(case) = env::var(CASE) {
        return body(&case);
    }
    let fakes = fake::build();
    let start = |(case, blocking): &(&str, Option<&str>)| {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", test])
            .env(CASE, case)
            .env(fake::BUILT, fakes.path())
            .env("NCCL_LIBRARY", fakes.path().join("new.so"))
            .env_remove(BLOCKING)
            .stdout(Stdio::piped());
        command.envs(blocking.map(|value| (BLOCKING, value))).spawn().unwrap()
    };
    let processes: Vec<_> = cases.iter().map(start).collect();
    for (process, (case, _)) in processes.into_iter().zip(cases) {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(" 1 passed"), "{case}: {text}");
    }
}

#[test]
fn a_driver_that_is_too_old_or_missing_is_an_error() {
    let cases = [("old", None), ("new", None), ("missing", None)];
    in_processes("processes::a_driver_that_is_too_old_or_missing_is_an_error", &cases, |case| match case {
        "old" => {
            let fake = Fake::new();
            fake.set(Knob::DriverVersion, 11_080);
            let text = cuda::available().unwrap_err().to_string();
            let wanted = "no CUDA driver: the driver supports CUDA 11.8; 12.0 or newer is needed; ";
            assert!(text.starts_with(wanted), "{text}");
            // The first result is cached.
            fake.set(Knob::DriverVersion, 0);
            assert!(matches!(device_count(), Err(Error::NoDriver { .. })));
            assert!(matches!(cuda::driver_version(), Err(Error::NoDriver { .. })));
        }
        "new" => {
            let fake = Fake::new();
            cuda::available().unwrap();
            fake.set(Knob::DriverVersion, 13_010);
            assert_eq!(cuda::driver_version().unwrap(), 13_010);
        }
        // No fake is loaded here, and cudarc would panic. A machine with GPUs has a driver.
        _ => match cuda::available() {
            Err(Error::NoDriver { reason }) => assert!(reason.starts_with("libcuda.so.1 cannot be loaded: ")),
            answer => println!("there is a driver: {answer:?}"),
        },
    });
}

/// NCCL's own variable, which overrides the configuration.
#[test]
fn the_environment_says_which_communicators_are_blocking() {
    let cases = [
        ("blocking", Some("1")),
        ("non-blocking", Some(" 0 ")),
        ("as configured", Some("2")),
        ("as configured, empty", Some("")),
        ("as configured, too large", Some("99999999999999999999")),
        // NCCL reads a number in the notation of C, and 0 where there is none.
        ("non-blocking, a word", Some("off")),
        ("non-blocking, hexadecimal", Some("0x0")),
        ("blocking, octal", Some("01 yes")),
    ];
    in_processes("processes::the_environment_says_which_communicators_are_blocking", &cases, |case| {
        let fake = Fake::new();
        // NCCL's own behaviour is not tested here.
        fake.set(Knob::Worker, worker::OFF);
        for blocking in [true, false] {
            let communicator = fake.communicator(&Config::new().blocking(blocking));
            let mut memory = fake.memory(communicator.stream(), 8);
            let graph = Graph::capture(|capture| {
                capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
            });
            let expected = match case.split(',').next().unwrap() {
                "blocking" => true,
                "non-blocking" => false,
                _ => blocking,
            };
            assert_eq!(graph.is_ok(), expected, "{blocking}");
            if let Err(error) = graph {
                assert!(error.to_string().contains("communicators must be blocking"), "{error}");
            }
        }
    });
}
