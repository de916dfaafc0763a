//! NCCL's parameters, and encryption.

use std::ffi::{CStr, CString, c_int};
use std::ptr;

use nccl_sys::{ncclEncryptionConfig_t, ncclEncryptionMode_t};

use super::{error::Error, library::Library};

const PARAMETER: &str = "ncclParamGetParameter";

impl Library {
    /// Names and values of NCCL's parameters (`ncclParamGetAllParameterKeys`, NCCL 2.30.4). Up to 2.32, NCCL
    /// lists only a few of the `NCCL_*` variables, mostly about its log, and a few more with
    /// `NCCL_PARAM_DUMP_ALL=true` in the environment.
    ///
    /// ```no_run
    /// for (name, value) in collectives::nccl::Library::load()?.parameters()? {
    ///     println!("{name}={value}");
    /// }
    /// # Ok::<(), collectives::nccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.30.4; [`Error::Nccl`].
    pub fn parameters(self) -> Result<Vec<(String, String)>, Error> {
        const OPERATION: &str = "ncclParamGetAllParameterKeys";
        let (mut table, mut length) = (ptr::null_mut(), 0);
        // SAFETY: writes one pointer and one int.
        let code = unsafe { self.raw().ncclParamGetAllParameterKeys(&mut table, &mut length) }?;
        self.check_code(OPERATION, code)?;
        let length = usize::try_from(length).unwrap_or(0);
        // SAFETY: the table has this number of strings, and stays valid until this thread's next call.
        let names: Vec<CString> =
            (0..length).map(|index| unsafe { CStr::from_ptr(*table.add(index)) }.to_owned()).collect();
        let value = |name: CString| Ok((lossy_text(&name), self.value_of(&name)?));
        names.into_iter().map(value).collect()
    }

    /// Value of a parameter, by the name of its environment variable (`ncclParamGetParameter`, NCCL 2.30.4).
    ///
    /// # Errors
    /// The errors of [`parameters`](Self::parameters), also for an unknown parameter; [`Error::Argument`] for
    /// a NUL byte.
    pub fn parameter(self, name: &str) -> Result<String, Error> {
        self.value_of(&CString::new(name).map_err(|_| Error::nul_in_text(PARAMETER))?)
    }

    fn value_of(self, name: &CStr) -> Result<String, Error> {
        let (mut value, mut length) = (ptr::null(), 0);
        // SAFETY: the name ends with NUL; writes one pointer and one int.
        let code = unsafe { self.raw().ncclParamGetParameter(name.as_ptr(), &mut value, &mut length) }?;
        self.check_code(PARAMETER, code)?;
        if value.is_null() {
            return Ok(String::new());
        }
        // SAFETY: NCCL's string ends with NUL, and stays valid until this thread's next call.
        Ok(lossy_text(unsafe { CStr::from_ptr(value) }))
    }

    /// Writes all parameters to NCCL's log (`ncclParamDumpAll`, NCCL 2.30.4).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.30.4.
    pub fn dump_parameters(self) -> Result<(), Error> {
        // SAFETY: no arguments.
        Ok(unsafe { self.raw().ncclParamDumpAll() }?)
    }

    /// Enables encryption of NCCL's TCP connections with a pre-shared key, the same on all ranks, or disables
    /// it (`ncclSetEncryption`, NCCL 2.32). Call it before the first communicator is created.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.32; [`Error::Nccl`]; [`Error::Argument`] for a key with a NUL
    /// byte.
    pub fn set_encryption(self, pre_shared_key: Option<&str>) -> Result<(), Error> {
        let key = pre_shared_key.map(CString::new).transpose();
        let key = key.map_err(|_| Error::nul_in_text("ncclSetEncryption"))?;
        let mode = match key {
            Some(_) => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK,
            None => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE,
        };
        // NCCL's header does not promise a copy of the key, so it is leaked.
        let psk = key.map_or(ptr::null_mut(), CString::into_raw);
        let config = ncclEncryptionConfig_t { mode: mode.0 as c_int, psk, ..Default::default() };
        // SAFETY: the struct lives for the duration of the call, its string forever.
        let code = unsafe { self.raw().ncclSetEncryption(&config) }?;
        self.check_code("ncclSetEncryption", code)
    }
}

fn lossy_text(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}
