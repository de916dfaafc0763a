//! NCCL's parameters, what they are set to in this process, and encryption.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;

use nccl_sys::{
    MissingSymbol, Nccl, ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclParamHandle_t, ncclResult_t,
};

use super::error::Error;
use super::library::Library;

/// A parameter of NCCL: an `NCCL_*` variable with the value that it has in this process (NCCL 2.30.4).
#[derive(Clone, Copy)]
pub struct Parameter {
    library: Library,
    handle: ncclParamHandle_t,
}

// SAFETY: NCCL owns the handle for the life of the process, and its parameters may be read from any thread.
unsafe impl Send for Parameter {}
// SAFETY: as above.
unsafe impl Sync for Parameter {}

impl Library {
    /// The parameters that NCCL lists, by name, with their values as text (`ncclParamGetAllParameterKeys`,
    /// `ncclParamGetParameter`, NCCL 2.30.4). These are not all `NCCL_*` variables: up to 2.32 they are a few, most of
    /// them about NCCL's log, and with `NCCL_PARAM_DUMP_ALL=true` in the environment a few more.
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
        self.check(OPERATION, code)?;
        let length = usize::try_from(length).unwrap_or(0);
        // SAFETY: the table has so many strings, and stays until this thread asks for it again.
        let names: Vec<CString> =
            (0..length).map(|index| unsafe { CStr::from_ptr(*table.add(index)) }.to_owned()).collect();
        let value = |name: CString| Ok((lossy(&name), self.value_of(&name)?));
        names.into_iter().map(value).collect()
    }

    fn value_of(self, name: &CStr) -> Result<String, Error> {
        let (mut value, mut length) = (ptr::null(), 0);
        // SAFETY: the name ends with NUL; writes one pointer and one int.
        let code = unsafe { self.raw().ncclParamGetParameter(name.as_ptr(), &mut value, &mut length) }?;
        self.check("ncclParamGetParameter", code)?;
        // SAFETY: NCCL's string stays until this thread asks for the next one.
        Ok(unsafe { text(value) })
    }

    /// One parameter, by the name of its variable (`ncclParamBind`, NCCL 2.30.4), also of those that
    /// [`parameters`](Self::parameters) leaves out.
    ///
    /// ```no_run
    /// # use collectives::nccl::{Error, Library};
    /// let subsystems: u64 = Library::load()?.parameter("NCCL_DEBUG_SUBSYS")?.get()?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.30.4; [`Error::Nccl`] when there is no such parameter; [`Error::Text`].
    pub fn parameter(self, name: &str) -> Result<Parameter, Error> {
        let name = CString::new(name).map_err(|_| Error::Text { what: "the name of a parameter" })?;
        let mut handle = ptr::null_mut();
        // SAFETY: the name ends with NUL; writes one pointer.
        let code = unsafe { self.raw().ncclParamBind(&mut handle, name.as_ptr()) }?;
        self.check("ncclParamBind", code)?;
        Ok(Parameter { library: self, handle })
    }

    /// Writes all parameters into NCCL's log (`ncclParamDumpAll`, NCCL 2.30.4).
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.30.4.
    pub fn dump_parameters(self) -> Result<(), Error> {
        // SAFETY: no arguments.
        Ok(unsafe { self.raw().ncclParamDumpAll() }?)
    }

    /// Asks for encryption of NCCL's TCP connections with a key that all ranks share, or for none
    /// (`ncclSetEncryption`, NCCL 2.32). Before the first communicator.
    ///
    /// # Errors
    /// [`Error::MissingSymbol`] before NCCL 2.32; [`Error::Nccl`]; [`Error::Text`].
    pub fn set_encryption(self, pre_shared_key: Option<&str>) -> Result<(), Error> {
        let key = pre_shared_key.map(CString::new).transpose();
        let key = key.map_err(|_| Error::Text { what: "the pre-shared key" })?;
        let mode = match key {
            Some(_) => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK,
            None => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE,
        };
        // NCCL's header does not say that it copies the key: it stays for the life of the process.
        let psk = key.map_or(ptr::null_mut(), CString::into_raw);
        let config = ncclEncryptionConfig_t { mode: mode.0 as c_int, psk, ..Default::default() };
        // SAFETY: the struct lives for the length of the call, its text for ever.
        let code = unsafe { self.raw().ncclSetEncryption(&config) }?;
        self.check("ncclSetEncryption", code)
    }
}

mod sealed {
    use super::{MissingSymbol, Nccl, ncclParamHandle_t, ncclResult_t};

    pub trait Sealed: Default {
        /// # Safety
        /// The handle is one of NCCL's.
        unsafe fn read(
            raw: &Nccl,
            handle: ncclParamHandle_t,
            value: &mut Self,
        ) -> Result<ncclResult_t, MissingSymbol>;
    }
}

/// An integer type that parameters can be read as. Sealed.
pub trait ParameterValue: sealed::Sealed {
    /// NCCL's function.
    const FUNCTION: &'static str;
}

macro_rules! values {
    ($($type:ty => $function:ident),*) => {$(
        impl sealed::Sealed for $type {
            unsafe fn read(
                raw: &Nccl,
                handle: ncclParamHandle_t,
                value: &mut Self,
            ) -> Result<ncclResult_t, MissingSymbol> {
                // SAFETY: by the contract; writes one number of this type.
                unsafe { raw.$function(handle, value) }
            }
        }

        impl ParameterValue for $type {
            const FUNCTION: &'static str = stringify!($function);
        }
    )*};
}

values! {
    i8 => ncclParamGetI8,
    i16 => ncclParamGetI16,
    i32 => ncclParamGetI32,
    i64 => ncclParamGetI64,
    u8 => ncclParamGetU8,
    u16 => ncclParamGetU16,
    u32 => ncclParamGetU32,
    u64 => ncclParamGetU64
}

impl Parameter {
    /// The value as an integer (`ncclParamGetI8` to `ncclParamGetU64`), of exactly the type that the parameter has.
    ///
    /// # Errors
    /// [`Error::Nccl`] when it is of another type, also of another integer type.
    pub fn get<T: ParameterValue>(&self) -> Result<T, Error> {
        let mut value = T::default();
        // SAFETY: the handle came from NCCL, which keeps it.
        let code = unsafe { T::read(self.library.raw(), self.handle, &mut value) }?;
        self.library.check(T::FUNCTION, code)?;
        Ok(value)
    }

    /// The value of a parameter that is a text (`ncclParamGetStr`).
    ///
    /// # Errors
    /// [`Error::Nccl`] when it is of another type. [`Library::parameters`] has any as text.
    pub fn text(&self) -> Result<String, Error> {
        let mut value = ptr::null();
        // SAFETY: the handle came from NCCL, which keeps it; writes one pointer.
        let code = unsafe { self.library.raw().ncclParamGetStr(self.handle, &mut value) }?;
        self.library.check("ncclParamGetStr", code)?;
        // SAFETY: NCCL's string stays until this thread asks for the next one.
        Ok(unsafe { text(value) })
    }

    /// The value as NCCL keeps it (`ncclParamGet`), of any type: a number's bytes, one byte of 0 or 1, a text with its
    /// NUL. At most 4096 bytes of it.
    ///
    /// # Errors
    /// [`Error::Nccl`].
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        let mut value = vec![0u8; 4096];
        let (room, mut length): (c_int, c_int) = (4096, 0);
        let into: *mut c_void = value.as_mut_ptr().cast();
        // SAFETY: the handle came from NCCL, which keeps it; there is so much room.
        let code = unsafe { self.library.raw().ncclParamGet(self.handle, into, room, &mut length) }?;
        self.library.check("ncclParamGet", code)?;
        value.truncate(usize::try_from(length).unwrap_or(0));
        Ok(value)
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Parameter").field(&self.text()).finish()
    }
}

fn lossy(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}

/// # Safety
/// Null, or a string that ends with NUL.
unsafe fn text(value: *const c_char) -> String {
    if value.is_null() {
        return String::new();
    }
    // SAFETY: by the contract.
    lossy(unsafe { CStr::from_ptr(value) })
}
