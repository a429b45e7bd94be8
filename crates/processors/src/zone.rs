//! The option `timezone` of processors.

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem};
use millstream_wire::zone;

/// The time zone if an option does not set one.
pub(crate) const DEFAULT: &str = "UTC";

/// Finds the time zone `name`, which is the value of the option at `path`.
pub(crate) fn find(options: &Node, path: &str, name: Option<&str>) -> Result<TimeZone, Problem> {
    let name = name.unwrap_or(DEFAULT);
    zone::find(name).ok_or_else(|| {
        let problem = options.problem_at(path, format!("no time zone is called `{name}`"));
        problem.help(zone::HELP)
    })
}

/// Returns the name of the time zone for VRL programs. VRL accepts only names of the IANA database. The database has names only for
/// offsets of whole hours, so an offset such as `+05:30` is an error.
pub(crate) fn of_programs(options: &Node, name: Option<&str>) -> Result<String, Problem> {
    let zone = find(options, "timezone", name)?;
    let name = name.unwrap_or(DEFAULT);
    if zone == TimeZone::UTC {
        return Ok(DEFAULT.to_owned());
    }
    if !name.starts_with(['+', '-']) {
        return Ok(name.to_owned());
    }
    let seconds = zone.to_fixed_offset().map_or(0, |offset| offset.seconds());
    match (seconds / 3600, seconds % 3600) {
        (0, 0) => Ok(DEFAULT.to_owned()),
        // These names have the reversed sign of POSIX: `Etc/GMT-9` is nine hours east of Greenwich.
        (hours, 0) => Ok(format!("Etc/GMT{:+}", -hours)),
        _ => {
            let message = format!("a VRL program cannot use the offset `{name}`");
            let help = "use a name of the IANA database, such as `Asia/Kolkata`, or an offset of whole hours";
            Err(options.problem_at("timezone", message).help(help))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::options;

    #[test]
    fn a_zone_is_a_known_name_or_an_offset() {
        let options = options("timezone: Mars\n");
        assert_eq!(find(&options, "timezone", None), Ok(TimeZone::UTC));
        assert!(find(&options, "timezone", Some("Europe/Berlin")).is_ok());
        let problem = find(&options, "timezone", Some("Mars")).unwrap_err();
        assert_eq!(problem.message, "no time zone is called `Mars`");
        assert_eq!((problem.place.line, problem.place.column), (1, 11));
        assert!(find(&options, "timezone", Some("+05:30")).is_ok());
    }

    #[test]
    fn programs_get_a_zone_name_for_an_offset() {
        let options = options("timezone: UTC\n");
        let name = |name| of_programs(&options, name).map_err(|problem| problem.message);
        assert_eq!(name(None).as_deref(), Ok("UTC"));
        assert_eq!(name(Some("Europe/Berlin")).as_deref(), Ok("Europe/Berlin"));
        assert_eq!(name(Some("+09:00")).as_deref(), Ok("Etc/GMT-9"));
        assert_eq!(name(Some("-0300")).as_deref(), Ok("Etc/GMT+3"));
        assert_eq!(name(Some("-00:00")).as_deref(), Ok("UTC"));
        assert!(name(Some("+05:30")).is_err_and(|why| why.contains("+05:30")));
    }
}
