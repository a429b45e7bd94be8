//! The option `socket`: which users may connect to unix sockets.

use std::{
    fs,
    io::{self, Error, ErrorKind},
    os::{
        fd::AsFd,
        unix::fs::{PermissionsExt, lchown},
    },
    path::Path,
};

use millstream_config::{Node, Permissions, Problem};
use millstream_sys::accounts;
use rustix::fs::{Mode, fchmod};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::listen::{At, Listen};

/// Before the socket has its final owner and permissions, no other user may connect.
const CLOSED: Mode = Mode::from_bits_retain(0o600);
/// A program that connects or sends needs the permission to write. This is that permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Access to the unix sockets in `listen`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SocketAccess {
    /// Permissions of the sockets in octal, such as `0660`. A program may send if it has the permission to write. Default: set by
    /// the umask, usually `0755`: only the user of Millstream and root may send.
    pub mode: Option<Permissions>,
    /// User who owns the sockets: a name or a number. Only root can give a socket to another user. Default: the user of Millstream.
    #[serde(deserialize_with = "name_or_number")]
    pub owner: Option<String>,
    /// Group of the sockets: a name or a number. Without root's rights it must be a group of Millstream's user. Default: the group
    /// of Millstream.
    #[serde(deserialize_with = "name_or_number")]
    pub group: Option<String>,
}

impl SocketAccess {
    /// Whether the option sets anything.
    pub(crate) fn is_set(&self) -> bool {
        self.mode.is_some() || self.owner.is_some() || self.group.is_some()
    }

    /// Adds a problem if the option has no effect, because no address is a path.
    pub(crate) fn check(&self, listens: &[Listen], options: &Node, problems: &mut Vec<Problem>) {
        let has_path = listens
            .iter()
            .any(|listen| matches!(listen.at, At::Path(_)));
        if self.is_set() && !has_path {
            let text = "`socket` is for unix sockets, and `listen` has none: write `unix:///PATH`";
            problems.push(options.problem_at("socket", text));
        }
    }

    /// Closes a socket that gets a mode to all other users until [`SocketAccess::apply`] is called. The kernel gives these
    /// permissions to the file that `bind` makes.
    pub(crate) fn close(&self, socket: impl AsFd) -> io::Result<()> {
        match self.mode {
            Some(_) => Ok(fchmod(socket, CLOSED)?),
            None => Ok(()),
        }
    }

    /// Sets the owner, the group and the permissions of the socket at `path`.
    pub(crate) fn apply(&self, path: &Path) -> io::Result<()> {
        // The file of a socket that was inherited or taken over may have been replaced by a link.
        if self.is_set() && fs::symlink_metadata(path)?.is_symlink() {
            return Err(Error::other(
                "it is a symbolic link: `socket` changes only a socket",
            ));
        }
        let owner = id_of("user", "owner", self.owner.as_deref(), accounts::user_id)?;
        let group = id_of("group", "group", self.group.as_deref(), accounts::group_id)?;
        if owner.is_some() || group.is_some() {
            lchown(path, owner, group).map_err(|error| self.not_given(&error))?;
        }
        let Some(mode) = self.mode else {
            return Ok(());
        };
        let set = fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()));
        set.map_err(|error| Error::other(format!("cannot set `socket.mode`: {error}")))
    }

    /// The text for the log about a socket that only its owner may use, although no option asks for that.
    pub(crate) fn hint(&self, path: &Path) -> Option<String> {
        if self.mode.is_some() {
            return None;
        }
        let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
        let text = format!(
            "; only its owner and root may send to it (permissions {mode:04o}): `socket: {{ mode: 0666 }}` lets all users"
        );
        (mode & OTHERS_WRITE == 0).then_some(text)
    }

    fn not_given(&self, error: &Error) -> Error {
        let names = [("user", &self.owner), ("group", &self.group)];
        let names = names.iter().filter_map(|(what, name)| {
            let name = name.as_deref()?;
            Some(format!("the {what} `{name}`"))
        });
        let names = names.collect::<Vec<_>>().join(" and ");
        let advice = match error.kind() {
            ErrorKind::PermissionDenied => {
                ": only root can give a socket to another user, or to a group that its own user is not in"
            }
            _ => "",
        };
        Error::other(format!(
            "cannot give the socket to {names}: {error}{advice}"
        ))
    }
}

/// The id of a user or group: the number itself, or what the system knows by this name.
fn id_of(
    what: &str,
    option: &str,
    name: Option<&str>,
    look_up: impl FnOnce(&str) -> io::Result<Option<u32>>,
) -> io::Result<Option<u32>> {
    let Some(name) = name else {
        return Ok(None);
    };
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    match look_up(name) {
        Ok(Some(id)) => Ok(Some(id)),
        Ok(None) => Err(Error::other(format!(
            "this machine has no {what} `{name}` (`socket.{option}`)"
        ))),
        Err(error) => Err(Error::other(format!(
            "cannot look up the {what} `{name}`: {error}"
        ))),
    }
}

fn name_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Account {
        Number(u32),
        Name(String),
    }
    let account = Option::<Account>::deserialize(deserializer)?;
    Ok(account.map(|account| match account {
        Account::Number(number) => number.to_string(),
        Account::Name(name) => name,
    }))
}
