#!/usr/bin/env bash
# Installs the dependencies of the tests: tools from Debian, client libraries from PyPI, npm, the Go proxy and Maven Central.
# Everything but the Debian packages is installed into target/clients. A missing package fails the tests that need it.
set -euo pipefail
cd "$(dirname "$0")/.."

need() { # COMMAND PACKAGE: installs a Debian package unless the command exists
	command -v "$1" >/dev/null && return
	packages+=("$2")
}
packages=()
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
need node nodejs
need npm npm
need go golang-go
need mvn maven
need curl curl
need g++ g++
need logrotate logrotate
need journalctl systemd
[ -x /lib/systemd/systemd-journal-remote ] || packages+=(systemd-journal-remote)
need fusermount3 fuse3
need fio fio
need stress-ng stress-ng
need setpriv util-linux
need strace strace
need javac default-jdk-headless
need openssl openssl
dpkg-query -W libgssapi-krb5-2 >/dev/null 2>&1 || packages+=(libgssapi-krb5-2)
need zstd zstd
need logger bsdutils
need rsyslogd rsyslog
rsyslog_modules=$(dirname "$(find /usr/lib -name imptcp.so -path '*rsyslog*' 2>/dev/null | head -n 1)")
[ -e "$rsyslog_modules/omrelp.so" ] || packages+=(rsyslog-relp)
[ -e "$rsyslog_modules/lmnsd_gtls.so" ] || packages+=(rsyslog-gnutls)
[ -e "$rsyslog_modules/lmnsd_ossl.so" ] || packages+=(rsyslog-openssl)
# The libraries of syslog-ng and Apache, which are unpacked below.
for library in libivykis0 libnet1 libwrap0 libjson-c5 libglib2.0-0 libpcre3 libpcre2-8-0 libexpat1 libuuid1; do
	dpkg-query -W "$library" >/dev/null 2>&1 || packages+=("$library")
done
need kcat kcat
# The browser of the dashboard's tests, with a font for its signs.
need chromium chromium
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || packages+=(fonts-dejavu-core)
# Build tools for librdkafka.
need make make
need gcc gcc
need g++ g++
need pkg-config pkg-config
have() { pkg-config --exists "$1" 2>/dev/null || packages+=("$2"); }
have libssl libssl-dev
have zlib zlib1g-dev
if [ ${#packages[@]} -gt 0 ]; then
	echo "installing ${packages[*]}"
	sudo=""
	[ "$(id -u)" = 0 ] || sudo="sudo"
	$sudo apt-get update -qq
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

# Built once into the user's cache: cargo-deny checks deny.toml (licences, banned crates, sources), cargo-fuzz runs fuzz/, fsx and
# pjdfstest exercise the mounted directory.
tools="${XDG_CACHE_HOME:-$HOME/.cache}/millstream/tools"
for tool in cargo-deny@0.20.2 cargo-fuzz@0.13.2 fsx@0.3.2 pjdfstest@0.2.2; do
	[ -x "$tools/bin/${tool%@*}" ] && continue
	echo "building ${tool%@*}"
	CARGO_TARGET_DIR="$tools/target" cargo install --quiet --locked --root "$tools" "$tool"
	rm -rf "$tools/target"
done

into=target/clients
mkdir -p "$into"
# An S3 server with conditional creation and signature checks that survives restarts.
[ -x "$into/versitygw" ] || GOBIN="$PWD/$into" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
# Debian does not install syslog-ng beside rsyslog, and the packages of the others would start a server.
unpack() { # DIRECTORY PROGRAM PACKAGE...: unpacks Debian packages unless the program is there
	local to="$into/$1" program="$2"
	shift 2
	[ -x "$to/$program" ] && return
	mkdir -p "$to"
	(cd "$to" && apt-get download -q "$@" && for package in *.deb; do dpkg-deb -x "$package" .; done && rm ./*.deb)
}
unpack syslog-ng usr/sbin/syslog-ng syslog-ng-core
unpack nginx usr/sbin/nginx nginx nginx-common
unpack apache usr/sbin/apache2 apache2 apache2-bin apache2-utils libapr1 libaprutil1
unpack prometheus usr/bin/promtool prometheus
stamp=$(find tests/clients -type f | sort | xargs cat | sha256sum | cut -d' ' -f1)
[ "$(cat "$into/stamp" 2>/dev/null)" = "$stamp" ] && exit 0

cp -r tests/clients/. "$into/"
(cd "$into/python" && { [ -x venv/bin/python ] || python3 -m venv venv; } && venv/bin/pip install -q -r requirements.txt)
# Carbon, the receiver of Graphite. Without the variable it would install itself into /opt.
(cd "$into/carbon" && { [ -x venv/bin/python ] || python3 -m venv venv; } && GRAPHITE_NO_PREFIX=True venv/bin/pip install -q -r requirements.txt)
for directory in node browser; do
	(cd "$into/$directory" && npm ci --loglevel=error --no-audit --no-fund)
done
(cd "$into/go" && go build -o send . && go build -o rotating ./rotate)
for java in kafka kafka3 logback; do
	(cd "$into/$java" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=jars)
done
for java in java flume hdfs; do
	(cd "$into/$java" && mvn -q -B -DskipTests package dependency:copy-dependencies)
done
echo "$stamp" >"$into/stamp"
