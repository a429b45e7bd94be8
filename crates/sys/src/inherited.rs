//! Descriptors that a process was started with.

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the process was started with; children do not inherit it from now on. Call this once for each descriptor
/// number that the environment of the process names, and before the process opens any file: later, another part of the program could own
/// that number.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the descriptor is not used after this call if it is not open.
    #[allow(unsafe_code)]
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: the descriptor is open, and by the rule above nothing else owns it.
    #[allow(unsafe_code)]
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&owned, flags | FdFlags::CLOEXEC)?;
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, IntoRawFd};

    use super::*;

    #[test]
    fn an_open_descriptor_is_taken_over_and_a_closed_one_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = rustix::io::dup(&file).unwrap().into_raw_fd();
        let owned = adopt(number).unwrap();
        assert!(
            fcntl_getfd(owned.as_fd())
                .unwrap()
                .contains(FdFlags::CLOEXEC)
        );
        assert!(adopt(1 << 20).is_err());
        assert!(adopt(0).is_err());
    }
}
