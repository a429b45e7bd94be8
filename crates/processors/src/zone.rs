//! The option `timezone` of processors.

use jiff::tz::TimeZone;
use millstream_config::{Node, Problem};

/// The time zone if an option does not name one.
pub(crate) const DEFAULT: &str = "UTC";

/// The time zone that the option at `path` names.
pub(crate) fn find(options: &Node, path: &str, name: Option<&str>) -> Result<TimeZone, Problem> {
    let name = name.unwrap_or(DEFAULT);
    TimeZone::get(name).map_err(|_| {
        let problem = options.problem_at(path, format!("no time zone is called `{name}`"));
        problem.help("a name of the IANA database, such as `Europe/Berlin` or `UTC`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::options;

    #[test]
    fn a_zone_has_a_name_of_the_database() {
        let options = options("timezone: Mars\n");
        assert_eq!(find(&options, "timezone", None), Ok(TimeZone::UTC));
        assert!(find(&options, "timezone", Some("Europe/Berlin")).is_ok());
        let problem = find(&options, "timezone", Some("Mars")).unwrap_err();
        assert_eq!(problem.message, "no time zone is called `Mars`");
        assert_eq!((problem.place.line, problem.place.column), (1, 11));
    }
}
