//! Users and groups by name, as the system knows them: from `/etc/passwd` and `/etc/group`, or from a directory service.

use std::{ffi::CString, io, mem::MaybeUninit, ptr};

/// The first size of the buffer for an entry: enough for all but groups with very many members.
const ENTRY_BYTES: usize = 4 << 10;
/// The largest size of that buffer.
const ENTRY_BYTES_MAX: usize = 16 << 20;

/// The id of a user; `None` if the system has no user of this name.
pub fn user_id(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    with_buffer(|buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are to values that outlive the call, and the length is that of the buffer.
        #[allow(unsafe_code)]
        let error = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: if the call has found an entry, it has written it, and `found` points to it.
        #[allow(unsafe_code)]
        let id = (!found.is_null()).then(|| unsafe { entry.assume_init_ref() }.pw_uid);
        (error, id)
    })
}

/// The id of a group; `None` if the system has no group of this name.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    with_buffer(|buffer| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are to values that outlive the call, and the length is that of the buffer.
        #[allow(unsafe_code)]
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: if the call has found an entry, it has written it, and `found` points to it.
        #[allow(unsafe_code)]
        let id = (!found.is_null()).then(|| unsafe { entry.assume_init_ref() }.gr_gid);
        (error, id)
    })
}

/// Calls `look_up` with a larger buffer until the entry fits. `look_up` returns an error number and the id.
fn with_buffer(
    mut look_up: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<u32>),
) -> io::Result<Option<u32>> {
    let mut buffer = vec![0; ENTRY_BYTES];
    loop {
        match look_up(&mut buffer) {
            (0, id) => return Ok(id),
            // By these, the calls also say that the name does not exist (getpwnam_r(3)).
            (libc::ENOENT | libc::ESRCH, _) => return Ok(None),
            (libc::EINTR, _) => {}
            (libc::ERANGE, _) if buffer.len() < ENTRY_BYTES_MAX => {
                buffer.resize(buffer.len() * 4, 0);
            }
            (error, _) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users_and_groups_have_ids_and_other_names_have_none() {
        assert_eq!(user_id("root").unwrap(), Some(0));
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!(user_id("no such user").unwrap(), None);
        assert_eq!(group_id("no such group").unwrap(), None);
        assert!(user_id("a\0b").is_err());
    }

    #[test]
    fn an_entry_that_does_not_fit_gets_a_larger_buffer() {
        let mut sizes = Vec::new();
        let found = with_buffer(|buffer| {
            sizes.push(buffer.len());
            match sizes.len() {
                1 => (libc::ERANGE, None),
                2 => (libc::EINTR, None),
                _ => (0, Some(7)),
            }
        });
        assert_eq!(found.unwrap(), Some(7));
        assert_eq!(sizes, [ENTRY_BYTES, ENTRY_BYTES * 4, ENTRY_BYTES * 4]);
    }
}
