"""What a tool call does: its kind, action, target and fingerprint, from the tool's name and its arguments alone.

Why a room of its own: the live hook and the batch must read one call in one way, and the tables that decide it are data
that is shown, counted and hashed into the rule digest. Nothing here looks at a result: the part of a compound command
that speaks for the call is chosen before its outcome is known. Shell commands are lexed in `shell`; this module only
says what the programs found there do.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256

from . import shell
from .shell import Part, Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

KINDS = ("edit", "verify", "execute", "communicate", "operate", "research", "read", "plan", "wait", "other")
ATTEMPTS = frozenset({"edit", "verify", "execute", "communicate", "operate", "other"})
"""Kinds whose steps are attempts (METHOD 3). Reading, research, planning and waiting are not."""

_MEMO_SIZE = 4_096
_MEMO_TEXT = 4_096
_MAX_TARGETS = 200


def _names(text: str) -> list[str]:
    return text.split()


# --- tables of tools ----------------------------------------------------------------------------------------------

_TOOL_TEXT = """
edit Edit Write MultiEdit NotebookEdit apply_patch ApplyPatch str_replace_editor str_replace_based_edit_tool \
file_editor
edit text_editor text_editor_20250728 edit write create insert replace edit_file write_file create_file delete_file
edit rename_file move_file copy_file insert_content write_to_file apply_diff search_and_replace search_replace
edit replace_in_file apply_edits create_witness_test multi_edit edit_notebook edit_notebook_cell reapply
edit replace_file_content multi_replace_file_content replace_string_in_file multi_replace_string_in_file
edit insert_edit_into_file create_directory make_directory editedExistingFile newFileCreated str_replace undo_edit
edit edit_file_by_replace append_file insert_content_at_line write_memory_file remove_file patch
verify verify_done run_tests run_test runTests get_errors_after_build run_linter run_diagnostics type_check lint_file
execute Task Agent task delegate new_task spawn_agent send_input sessions_spawn sessions_send browser_click \
browser_type
execute browser_fill browser_fill_form browser_press_key browser_select_option browser_drag browser_hover \
browser_evaluate
execute browser_run_code browser_file_upload browser_handle_dialog browser_mouse_click_xy web_browser_click
execute web_browser_type web_browser_type_submit click type_text browser_interact browse_interactive left_click
execute write_stdin send_stdin start_process repo_commit git_commit git_add git_push git_checkout run_sql execute_sql
execute sql_query_write install_package create_pull_request merge_pull_request push_files image_generate \
generate_image
execute Workflow subagent call_omo_agent SlashCommand background_task switch_agent Artifact create_pr computer
execute update_reservation_flights update_reservation_passengers update_reservation_baggages cancel_reservation
execute book_reservation send_certificate transfer_to_human_agents cancel_pending_order exchange_delivered_order_items
execute modify_pending_order_address modify_pending_order_items modify_pending_order_payment modify_user_address
execute return_delivered_order_items toggle_data toggle_airplane_mode toggle_data_saver_mode toggle_roaming
execute toggle_wifi toggle_wifi_calling set_network_mode_preference reset_apn_settings set_apn_settings
execute grant_app_permission enable_roaming disable_roaming reseat_sim_card refuel_data disconnect_vpn connect_vpn
execute make_payment send_payment_request resume_line suspend_line reboot_device
communicate send_email send_mail send_message SendMessage send_sms post_message reply_to_message slack_post_message
communicate slack_send_message slack_reply_to_thread add_issue_comment create_issue_comment add_comment_to_issue
communicate create_comment add_comment message PushNotification SendUserMessage notify_user_external tts
operate KillShell KillBash TaskStop stop_process kill_process kill_session cancel_task close_agent cron CronCreate
operate CronDelete create_issue update_issue close_issue issue_write create_ticket update_ticket jira_create_issue
operate gateway nodes resume_agent restart_process pause_process
research WebSearch WebFetch web_search web_fetch google_web_search web_browser_go browse browser_navigate
research browser_navigate_back fetch fetch_url browser_action browser web_browser_forward web_browser_back \
google_search
research visit_webpage tavily_search search_web read_url_content exa_search webfetch websearch web_run fetch_webpage
research image_search resolve-library-id get-library-docs web_browser_refresh codesearch
read Read Grep Glob LS NotebookRead LSP ListMcpResourcesTool ReadMcpResourceTool ListMcpResources ReadMcpResource read
read read_file read_files read_many_files list_files list_directory list_dir search_files search_file_content
read codebase_search grep grep_search glob file_search view view_image view_file open goto scroll_up scroll_down
read search_file search_dir find_file find find_filedir ls list_code_definition_names list_state project_overview
read get_environment repo_status tool_search ToolSearch gather_context probe_capability sessions_history sessions_list
read session_status readFile readFiles searchFiles listFilesTopLevel listFilesRecursive listCodeDefinitionNames
read fetch_instructions access_mcp_resource memory_search memory_get browser_snapshot browser_take_screenshot
read browser_console_messages browser_network_requests browser_tabs browser_scroll web_browser_scroll_up
read web_browser_scroll_down web_browser_find calculate think_read get_environment_info list_mcp_resources
read list_mcp_resource_templates read_mcp_resource read_notebook read_lints get_errors semantic_search list_skills
read open_file image pdf screenshot git_status git_diff git_log git_show lsp_diagnostics lsp_hover ast_grep_search
read tool_search_tool_bm25 tool_search_tool_regex CronList list_agents agents_list codebase_investigator
plan TodoWrite TodoRead TaskCreate TaskUpdate TaskList TaskGet update_plan think ExitPlanMode EnterPlanMode
plan exit_plan_mode enter_plan_mode AskUserQuestion ask_followup_question ask_user ask_question ask_user_question
plan request_user_input attempt_completion submit finish exit switch_mode task_create task_start task_complete \
task_list
plan task_update task_tracker save_memory Skill skill activate_skill use_skill todowrite todoread todo_write todo_read
plan write_todos update_todo_list plan_mode_respond sequentialthinking sequential_thinking plan memory
plan EnterWorktree ExitWorktree condense summarize_task report_bug new_rule focus_chain StructuredOutput
plan conversation_summary complete_task submit_plan question get_goal create_goal update_goal submit_result
plan exit_forfeit exit_cost exit_context recall manage_todo_list ReportFindings change_agent_state report_intent
wait BashOutput TaskOutput AgentOutputTool read_output sessions_yield sleep wait_for wait web_browser_wait \
browser_wait
wait browser_wait_for wait_agent background_output read_process get_terminal_output Monitor read_bash command_status
wait get_task_output wait_for_process ScheduleWakeup
shell Bash bash shell exec run run_shell_command execute_command execute_bash exec_command local_shell shell_command
shell run_terminal_cmd run_terminal_command run_terminal run_in_terminal shell_exec terminal container.exec \
run_command
shell container_exec cmd powershell PowerShell bash_tool bash_20250124 bash_session command developer__shell \
unified_exec
shell execute_shell run_bash shell_tool local_shell_call
edit propose_code fsWrite fsAppend fs_write save-file replace_symbol_body insert_after_symbol insert_before_symbol
edit create_text_file file_write file_str_replace
verify test lint build compile typecheck
execute puppeteer_click puppeteer_fill write_query shell_write_to_process
operate shell_kill_process
research browser_preview read_web_page download sourcegraph brave_web_search web_search_20250305 info_search_web
research puppeteer_navigate
read fetch_rules diff_history related_files trajectory_search test_search finder fs_read codebase-retrieval diagnostics
read directory_tree list_directory_contents tree git_diff_unstaged git_diff_staged gh_pr_view gh_issue_view file_read
read file_find_in_content file_find_by_name browser_view notion-search puppeteer_screenshot kubectl_get kubectl_describe
plan suggested_responses create_memory userInput remember final_answer sequential-thinking__sequentialthinking
plan mcp__sequential-thinking__sequentialthinking handoff done complete give_up noop ask_human message_ask_user
plan message_notify_user idle
wait shell_view shell_wait
shell execute_shell_command
code python_interpreter executeCode
code run_ipython python execute_python run_code code_execution ipython execute_code jupyter_execute js_repl \
code_interpreter
code python_exec run_python execute_ipython_cell code_run
"""

# A tool whose kind depends on an argument: tool | argument | value=kind …; `*` any other value, `` the empty one.
_ARGUMENT_TEXT = """
str_replace_editor|command|view=read
str_replace_based_edit_tool|command|view=read
file_editor|command|view=read
text_editor|command|view=read
text_editor_20250728|command|view=read
edit|command|view=read
process|action|poll=wait log=wait list=wait kill=operate remove=operate clear=operate *=execute =wait
write_stdin|chars|=wait *=execute
send_stdin|text|=wait *=execute
subagents|action|list=wait kill=operate steer=execute *=execute =wait
browser|action|open=research navigate=research start=research snapshot=read screenshot=read console=read tabs=read \
act=execute
browser_action|action|launch=research scroll_up=read scroll_down=read click=execute type=execute hover=execute \
press=execute
computer|action|screenshot=read cursor_position=read wait=wait zoom=read
message|action|read=read search=read list=read
memory|command|view=read
cron|action|list=read status=wait runs=read
nodes|action|status=read describe=read list=read
browser_tabs|action|new=research close=execute select=read
Monitor|command|*=wait
"""


def _tools() -> dict[str, str]:
    out: dict[str, str] = {"process": "wait", "subagents": "wait"}
    for line in _TOOL_TEXT.split("\n"):
        kind, _, names = line.partition(" ")
        for name in names.split():
            out[name] = kind
    return out


TOOLS: dict[str, str] = _tools()
"""Tool name, as the log writes it -> kind. `shell` and `code` are decided by the command or code in the arguments."""

# First words of names that tell what an unlisted tool does. The result is marked as a guess (`kind_source` = `name`).
_VERB_TEXT = """
read get list search read query describe find check calculate show view lookup count fetch_status inspect status is \
has
read can compare explain resolve retrieve grep glob ls locate preview download_status
execute update cancel book modify exchange return transfer toggle set grant reset create delete remove add enable \
disable
execute execute run deploy install send post submit_form upload merge push commit approve reject assign apply start \
launch
execute connect disconnect make resume suspend reboot click fill type press select drag invoke call trigger publish \
save
execute import export reseat refuel insert upsert drop generate
wait poll wait await
research fetch browse crawl scrape navigate
operate kill stop restart schedule
communicate notify reply comment tweet email
plan think todo
edit edit write rename
"""
_MESSAGE_WORDS = frozenset(
    {"email", "mail", "message", "messages", "sms", "dm", "reply", "comment", "notification", "slack", "tweet"}
)
_VERBS: dict[str, str] = {}
_BY_ARGUMENT: dict[str, tuple[str, dict[str, str]]] = {}
_FOLDED: dict[str, str] = {}
_TOOL_MEMO: dict[str, tuple[str, str, str]] = {}

# --- tables of programs -------------------------------------------------------------------------------------------

_PROGRAM_TEXT = """
read cat ls dir tree head tail less more bat grep egrep fgrep zgrep rg ag ack fd fdfind find locate wc pwd which \
whereis type
read stat file diff cmp comm colordiff delta sort uniq cut tr awk gawk mawk nawk sed jq yq column fold nl rev tac \
xxd od hexdump
read strings du df free uname whoami id hostname env printenv date uptime ps pgrep top htop lsof netstat ss ip \
ifconfig
read history man info help realpath readlink basename dirname sha1sum sha256sum sha512sum md5sum md5 shasum cksum \
b2sum
read nproc lscpu lsblk lsusb lspci nvidia-smi groups getent locale tput tty arch sw_vers objdump nm readelf ldd otool
read hash alias dpkg-query apt-cache rpm cloc tokei scc test [ [[ (( expr bc seq yes base64 iconv \
paste join
read split csplit tsort factor numfmt zcat bzcat xzcat zless ping dig nslookup host whois traceroute \
sqlite3_analyzer ast-grep
read sg pdftotext identify exiftool ffprobe mediainfo pstree vmstat iostat dmesg last w who finger umask ulimit jobs
read json.tool zipinfo lsb_release getconf mailq postconf tail-log xmllint pip-list sum look egrep-count fc compgen \
complete
read declare typeset gitk tig difft view open goto scroll_down scroll_up search_dir search_file find_file
research lynx links w3m elinks aria2c youtube-dl yt-dlp
edit mv rm cp mkdir touch rmdir ln tee truncate unlink shred patch apply_patch applypatch ed ex install rename mktemp
edit dos2unix unix2dos autopep8 yapf isort shfmt gofmt goimports rustfmt clang-format pyupgrade autoflake black \
prettier
edit codemod jscodeshift sponge mkfifo create insert edit str_replace
verify pytest py.test unittest nose nose2 nosetests tox nox doctest coverage mypy pyright basedpyright pyre pytype \
ruff flake8
verify pylint pycodestyle pydocstyle bandit vulture eslint tsc vue-tsc svelte-check jest vitest mocha ava tap \
jasmine karma
verify cypress playwright oxlint biome stylelint xo standard jshint tslint make gmake ninja cmake ctest meson bazel \
buck scons
verify gcc g++ cc c++ clang clang++ rustc javac kotlinc scalac swiftc ghc nasm cobc gfortran fpc ocamlc dotnet-test \
msbuild
verify mvn mvnw gradle gradlew sbt ant rspec minitest rubocop rake-test phpunit phpstan psalm phpcs pest shellcheck \
hadolint
verify yamllint markdownlint golangci-lint staticcheck govulncheck gotestsum ginkgo checkstyle ktlint detekt \
swiftlint bats
verify py_compile compileall build webpack rollup esbuild tsup ng actionlint tflint cppcheck clang-tidy \
valgrind-check ltp
verify pre-commit lefthook commitlint sphinx-build mkdocs-build luacheck busted mix-test zig-test sqlfluff \
codespell configure
verify kubeconform kubeval jsonlint htmlhint html-validate csslint ansible-lint cfn-lint checkov tfsec semgrep vale \
hlint slither
verify solhint coqc latexmk pdflatex xelatex lualatex tectonic xcodebuild elm-test bazelisk invoke-pester
verify runtests pyflakes twine-check cargo-nextest nextest c8 nyc knip ponyc hyperfine
execute chmod chown chgrp tar unzip zip gzip gunzip bzip2 xz 7z rsync scp sftp ftp ssh dd mount umount useradd \
userdel usermod
execute passwd psql mysql sqlite3 mongosh mongo redis-cli duckdb clickhouse-client bq mariadb sqlcmd cqlsh influx
execute pip uv conda mamba poetry pipenv pdm rye apt apt-get aptitude yum dnf apk pacman brew port snap choco \
winget gem
execute bundle composer cpan cpanm luarocks stack cabal opam nix-env twine vercel netlify fly heroku firebase \
wrangler serverless
execute ansible ansible-playbook terraform pulumi packer vagrant helm gcloud az python pypy ipython node deno bun \
tsx ts-node ruby perl
execute php lua java Rscript R julia elixir iex osascript swift scala kotlin groovy ghci racket guile sbcl octave \
matlab
execute sh bash zsh dash ksh expect gdb lldb pdb nc ncat socat telnet openssl gpg ssh-keygen keytool certbot ffmpeg \
convert
execute magick wasm-pack protoc grpc_tools.protoc venv virtualenv http.server flask uvicorn gunicorn django celery \
alembic
execute prisma drizzle-kit hugo jekyll next vite storybook electron xargs script mkfs fdisk losetup qemu-img \
pypi-server
execute qemu-system-x86_64 docker podman docker-compose entire xdotool adb fastlane xcrun code claude codex gemini \
aider goose
execute dpkg make-install depmod modprobe sysctl iptables ufw crontab-edit chpasswd groupadd visudo locale-gen \
update-alternatives
execute su exec eval strip ar ld objcopy git-lfs pandoc inkscape tesseract sshpass xorriso rustup nvm
execute mise asdf pyenv rbenv volta corepack n fnm hg svn jj parallel entr wkhtmltopdf dropdb createdb pg_dump \
pg_restore
execute newaliases postmap mailman cryptsetup zipfile pg_ctl initdb nginx sphinx-quickstart cookiecutter ollama llm
operate kill pkill killall systemctl service crontab at atq atrm batch qsub qdel qstat sbatch scancel squeue srun \
bsub bkill
operate supervisorctl pm2 launchctl initctl rc-service tmux screen renice fg bg postfix postsuper shutdown reboot halt
operate apachectl jira linear airflow
read get-content get-childitem get-item get-itemproperty get-location get-command get-process get-service get-help \
get-date
read get-filehash select-string select-object where-object sort-object measure-object group-object format-table \
format-list
read out-string test-path resolve-path compare-object convertfrom-json convertto-json gc gci
edit set-content add-content out-file new-item remove-item copy-item move-item rename-item clear-content tee-object
research invoke-webrequest invoke-restmethod iwr irm
wait start-sleep wait-process wait-job receive-job
operate stop-process start-process stop-service start-service restart-service stop-job
setup set-location push-location pop-location write-host write-output write-error out-null
communicate mail mailx sendmail mutt msmtp swaks slack slackcat telegram-send sendEmail
wait sleep wait watch inotifywait
plan submit exit_forfeit
setup true false : cd pushd popd export unset source . set shopt trap echo printf exit return local readonly let \
read shift \
break continue
setup getopts mapfile readarray unalias clear stty module disown
"""

# program | kind of every other subcommand | kind:sub sub … ; `*` behind a stem matches any ending
_SUB_TEXT = """
git|execute|read:status log diff show blame shortlog reflog ls-files ls-tree ls-remote rev-parse rev-list describe \
cat-file grep help version for-each-ref name-rev merge-base check-ignore diff-tree whatchanged count-objects fsck \
show-ref symbolic-ref var annotate range-diff cherry|edit:checkout apply restore rm mv clean reset switch stash am
jj|execute|read:status log diff show st|edit:restore abandon
hg|execute|read:status log diff annotate cat|edit:revert update
svn|execute|read:status log diff info cat list|edit:revert
cargo|execute|verify:build b test t check c clippy bench doc nextest rustc llvm-cov tarpaulin miri audit deny \
hack|edit:fmt fix|read:tree metadata search version pkgid locate-project
go|execute|verify:test vet build|read:env list version doc help|edit:fmt fix
rustup|execute|read:show
docker|execute|read:ps images inspect version info stats port history diff top search|wait:logs wait \
events|verify:build buildx|operate:stop kill rm restart start pause unpause rmi prune
podman|execute|read:ps images inspect version info|wait:logs wait|verify:build|operate:stop kill rm restart start
docker-compose|execute|read:ps images config|wait:logs|verify:build|operate:up down stop kill rm restart start
kubectl|execute|wait:get describe logs wait top events|operate:delete scale drain cordon uncordon|read:explain \
version diff api-resources cluster-info auth
helm|execute|read:list ls get show search history version|wait:status|verify:lint template|operate:uninstall rollback
terraform|execute|verify:validate plan|read:show output state providers version graph|edit:fmt
pip|execute|read:list show freeze check config index help debug
uv|execute|read:tree version|verify:build|edit:format
poetry|execute|read:show env version config|verify:build check
pdm|execute|read:list info show|verify:build
conda|execute|read:list info search env config
apt|execute|read:list show search policy
apt-get|execute|read:changelog
brew|execute|read:list info search --version deps outdated config doctor
gem|execute|read:list search info environment which|verify:build
mvn|verify|execute:deploy install exec:java spring-boot:run|read:dependency:tree
gradle|verify|execute:run bootRun publish installDebug|read:tasks dependencies
gradlew|verify|execute:run bootRun publish installDebug|read:tasks dependencies
dotnet|execute|verify:build test|edit:format|read:list
mix|execute|verify:test compile credo dialyzer|edit:format
swift|execute|verify:build test
zig|execute|verify:build test|edit:fmt
deno|execute|verify:test check lint bench|edit:fmt|read:info doc
bazel|verify|execute:run|read:query cquery info
bundle|execute|read:list show info outdated
rails|execute|verify:test
rake|execute|verify:test spec
systemctl|operate|wait:status is-active is-enabled is-failed show|read:list-units list-unit-files cat
supervisorctl|operate|wait:status tail
pm2|operate|wait:list ls logs status show jlist
launchctl|operate|wait:list print
tmux|operate|wait:capture-pane ls list-sessions|execute:send-keys
airflow|operate|read:version info config cheat-sheet
stack|execute|verify:build test bench
cabal|execute|verify:build test check bench v2-build v2-test
lein|execute|verify:test check compile
dune|execute|verify:build test runtest|edit:fmt
flutter|execute|verify:test analyze build|read:doctor devices|edit:format
dart|execute|verify:test analyze compile|edit:format fix
forge|execute|verify:test build|edit:fmt
hardhat|execute|verify:test compile
truffle|execute|verify:test compile
lake|execute|verify:build test
elm|execute|verify:make
gleam|execute|verify:test build check|edit:format
crystal|execute|verify:spec build
nim|execute|verify:c cpp js check compile
nimble|execute|verify:test build check
pants|execute|verify:test lint check package
buck2|execute|verify:test build
hatch|execute|verify:test build|edit:fmt|read:version
rye|execute|verify:test lint build|read:show list|edit:fmt
pipenv|execute|verify:check|read:graph
jira|operate|read:list view
ruff|verify|edit:format
biome|verify|edit:format
twine|execute|verify:check
entire|execute|read:status explain version
django|execute|verify:test check
alembic|execute|read:history current heads
sqlfluff|verify|edit:fix format
ng|verify|execute:serve generate add
vite|execute|verify:build
next|execute|verify:build lint
playwright|verify|execute:install open codegen
cypress|verify|execute:install open
ollama|execute|read:list show ps
mise|execute|read:ls list which current doctor tasks env where version
aws|execute|read:ls
npm|execute|verify:test t tst audit|read:ls list outdated why explain prefix root bin whoami config \
fund|research:view info show search
pnpm|execute|verify:test t audit|read:ls list outdated why|research:view info
yarn|execute|verify:audit|read:list why outdated workspaces|research:info
bun|execute|verify:test build|read:pm
composer|execute|verify:validate|read:show outdated
nx|execute|verify:test lint build affected
turbo|execute|verify:test lint build typecheck
just|execute|read:--list
task|execute|read:--list
"""
_PROGRAMS: dict[str, str] = {}
_SUBS: dict[str, tuple[str, dict[str, str]]] = {}

_FILTERS = frozenset(
    _names(
        """
        head tail grep egrep fgrep rg sed awk gawk sort uniq cut tr wc tee less more cat column fold nl rev tac jq yq
        xxd od hexdump strings base64 json.tool paste iconv bat sponge tac gzip gunzip zcat openssl md5sum sha256sum
        diff comm join select-object select-string where-object sort-object measure-object out-string out-file
        tee-object format-table format-list
        """
    )
)
_WRITERS = frozenset({"cat", "echo", "printf", "tee", ""})
_SEARCHERS = frozenset({"grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack"})
_SEARCH_TOOLS = frozenset(
    _names(
        """
        Grep grep grep_search search_file_content search_files codebase_search searchFiles search_file search_dir
        file_search WebSearch web_search google_web_search google_search tavily_search exa_search search_web
        """
    )
)
_SEARCH_KEYS = frozenset(
    _names(
        """
        pattern query regex path glob include include_pattern file_pattern type offset search_term dir dir_path
        directory file filename target_directories output_mode page cursor start allowed_domains blocked_domains
        """
    )
)
# Programs all of whose operands are paths; the number is how many operands come before the first path.
_PATH_OPERANDS = dict.fromkeys(
    _names(
        """
        cat head tail less more bat ls dir tree wc stat file du nl xxd od hexdump strings sha1sum sha256sum sha512sum
        md5sum md5 shasum cksum rm rmdir mkdir touch mv cp ln tee truncate unlink shred diff cmp comm realpath readlink
        basename dirname source . open sort uniq unzip gzip gunzip bzip2 xz zcat find install patch bash sh zsh python
        node ruby perl php lua tsx ts-node bun deno java pytest gofmt black prettier isort mypy flake8 pylint cobc gcc
        g++ cc clang clang++ rustc javac strip nm objdump ldd cd pushd py_compile shellcheck Rscript julia expect goto
        create edit patch dos2unix rustfmt clang-format autopep8 yapf shfmt view eslint tac rev file column zip tsc
        pyright basedpyright hadolint pyflakes pycodestyle pydocstyle bandit
        vulture
        """
    ),
    0,
)
_PATH_OPERANDS.update(
    dict.fromkeys(
        _names(
            """
            grep egrep fgrep zgrep rg ag ack sed awk gawk jq yq chmod chown chgrp fd tr search_file ast-grep
            ruff biome sqlfluff ty oxlint
            """
        ),
        1,
    )
)
# Programs whose operands look like paths and are none (image names, branches, packages): only clear paths count.
_REFERENCE_PROGRAMS = frozenset(
    _names(
        """
        git docker podman docker-compose kubectl gh glab aws gcloud az helm npm pnpm yarn bun pip uv poetry conda apt
        apt-get brew gem systemctl ssh scp rsync make mise just task terraform echo printf mail curl wget jj hg svn tmux
        kill pkill export npx nx turbo
        """
    )
)
_VALUE_TEXT = """
sqlfluff --dialect --templater --rules -r -d
ruff --select --ignore --config --output-format --target-version --line-length
pytest -k -m -c -p -n -W -o --rootdir --tb --maxfail --durations --timeout --cov --cov-report --junitxml --ignore \
--deselect --color
unittest -k -p -t -s
head -n -c
tail -n -c
grep -A -B -C -m -e -f --include --exclude --exclude-dir --color
egrep -A -B -C -m -e -f
rg -A -B -C -m -e -f -g -t -T -j --glob --type --max-count --max-depth
ag -A -B -C -m -G
sed -e -f -l
awk -F -v -f
jq --arg --argjson --indent -f
cut -d -f -c -b
sort -k -t -o -S
gcc -o -I -L -D -l -x -std -MF -include
g++ -o -I -L -D -l -x
cc -o -I -L -D
clang -o -I -L -D
clang++ -o -I -L -D
rustc -o --edition --crate-type -C -L
cobc -o -I
javac -d -cp -classpath
java -cp -classpath
python -W -X
node -r --require --import --env-file --loader
ls -I
du -d --max-depth
tree -L -I -P
mkdir -m
od -A -t -N -j -w
xxd -l -s -c -g
find -maxdepth
touch -d -t -r
go -run -count -timeout -o -tags -coverprofile -bench -ldflags -p -C
cargo --manifest-path -p --package --test --bin --features -j --example --target -C
jest -t --testNamePattern -c --config --maxWorkers
vitest -t --testNamePattern -c --config --reporter --pool
mocha -g --grep -t --timeout -r
mypy --config-file --python-version --cache-dir
ruff --select --ignore --config --line-length --output-format
flake8 --max-line-length --select --ignore --config
eslint -c --config --ext --format -f --max-warnings --rule
prettier --config --parser
black -l --line-length -t -c
pylint --rcfile --disable --enable --output-format -d -e -j
tsc -p --project --outDir --target
curl -X -H -d -o -u -A -e -b -c -m -w -F -T -x --request --header --data --data-raw --data-binary --output --user \
--max-time --form --json --connect-timeout --retry --write-out --data-urlencode
wget -O -o -P -U -t -T --header --post-data --timeout --tries --method --body-data
diff -U -C -I -x
split -l -b
psql -c -h -U -d -p
sqlite3 -cmd
install -m -o -g
zip -x
tar -C
"""
_VALUES: dict[str, frozenset[str]] = {}
_MODULE_PROGRAMS = frozenset({"unittest", "django", "nose2", "python", "trial", "doctest", "stestr", "mailman", "java"})
_HEADS = frozenset(
    _names(
        """
        git docker podman docker-compose kubectl gh glab aws gcloud az helm npm pnpm yarn bun pip uv poetry conda mamba
        apt apt-get brew gem systemctl service supervisorctl pm2 make gmake just task mise cargo go rustup terraform mvn
        gradle gradlew dotnet mix swift zig deno bazel bundle rails rake composer nx turbo ng entire hg svn jj django
        alembic ollama twine vite next playwright ruff biome launchctl tmux airflow jira linear tox nox dpkg snap apk
        yum dnf pacman helm cmake meson pre-commit ansible wrangler prisma vercel fly heroku firebase pulumi sqlfluff
        hatch pdm rye pipenv stack cabal lein dune flutter dart forge lake gleam buck2 pants asdf pyenv rbenv lerna
        """
    )
)
_EXTENSIONS = frozenset(
    _names(
        """
        py pyi pyx ipynb js jsx ts tsx mjs cjs mts cts vue svelte json jsonl json5 yaml yml toml ini cfg conf md mdx rst
        txt csv tsv sh bash zsh fish ps1 bat c h cc cpp cxx hpp hh m mm go rs java kt kts scala swift rb php pl pm lua r
        jl ex exs erl hs ml mli clj sql html htm css scss sass less xml svg png jpg jpeg gif pdf lock log patch diff env
        tf proto graphql gradle cmake mk mod sum zip tar gz tgz bz2 xz whl so a o exe dll db sqlite parquet dat bin cbl
        cob pony sol zig nim v vhd asm s tex bib exp out tmp bak orig
        """
    )
)

_RX: dict[str, Any] = {}
_PATTERNS = {
    "url": r"[a-z][a-z0-9+.-]{1,14}://[^\s'\"<>\\`)\]}]{1,4000}",
    "dotted": r"[A-Za-z_][A-Za-z0-9_-]{0,99}(?:\.[A-Za-z_][A-Za-z0-9_-]{0,99}){1,20}\Z",
    "simple": r"[a-z][a-z0-9:_.-]{0,60}\Z",
    "verify_name": r"(?:\A|[:_./-])(?:pre|post|re)?(?:tests?|lint(?:er|ing)?|check(?:s|er)?|build|type-?check|types"
    r"|tsc|verify|ci|spec|e2e|unit|coverage|compile|vet|clippy|validate|audit|typecheck|flake8|mypy|pytest"
    r"|all)(?:[:_./0-9-]|\Z)",
    "format_name": r"(?:\A|[:_./-])(?:format|fmt|prettier|fix|autofix)(?:[:_./-]|\Z)",
    "effect_name": r"(?:install|deploy|run|start|serve|clean|release|publish|up|down|stop|dev|migrate|seed|push"
    r"|uninstall|distclean|docker)"
    r"(?:[:_.-]|\Z)",
    "test_script": r"(?:run[_-]?)?(?:tests?|lint|check|build|verify|compile|configure|ci|validate)"
    r"(?:\.(?:sh|bash|zsh|ps1|bat|cmd))?\Z|run[_-]?tests?(?:[._-].*)?\Z",
    "script": r".*\.(?:sh|bash|py|pl|rb|js|mjs|cjs|ts|php|lua|exp|bat|ps1|exe|out|run|bin|jar|AppImage|tcl|r|R)\Z",
    "fetch": r"\brequests\.(?:get|head)\(|urlopen\(|urlretrieve\(|\bhttpx\.(?:get|stream)\(|\bfetch\("
    r"|\bhttps?\.get\(|axios\.get\("
    r"|aiohttp|hf_hub_download|snapshot_download|wget\.download|\burllib3\b|http\.client|Net::HTTP\.get"
    r"|LWP::Simple|file_get_contents\(.http"
    r"|URI\.open|pooch\.retrieve|axios\(",
    "test_call": r"\bPkg\.test\(|\btestthat::|\bdevtools::(?:test|check)\(|\bpytest\.main\(|\bunittest\.main\(",
    "effect": r"\.(?:post|put|patch|delete)\(|subprocess|os\.system|child_process"
    r"|method\s{0,4}[=:]\s{0,4}['\"](?:POST|PUT|PATCH|DELETE)"
    r"|smtplib|\.execute\(|\bdata\s{0,4}=\s{0,4}|os\.(?:remove|unlink|rename|replace|kill)|shutil\.|unittest"
    r"|pytest|\bassert\b|system\(|exec\(",
    "code_edit": r"(?:edit_file_by_replace|edit_file_by_line|edit_file|create_file|insert_content_at_line"
    r"|append_file)\(\s{0,9}(?:\w{1,20}\s{0,3}=\s{0,3})?r?['\"]([^'\"\n]{1,400})['\"]",
    "code_read": r"\A\s{0,200}(?:open_file|goto_line|scroll_down|scroll_up|search_dir|search_file"
    r"|find_file)\([^\n]{0,1000}\s{0,200}\Z",
    "patch": r"^\*\*\* (?:Add File|Update File|Delete File|Move to): ?([^\r\n]{1,1000})",
    "diff": r"^\+\+\+ (?:b/)?([^\t\r\n]{1,1000})",
    "drive": r"[A-Za-z]:(?:[\\/]|\Z)",
    "temporary": r"(?:/private)?/tmp(?=/|\Z)|/var/tmp(?=/|\Z)|(?:/private)?/var/folders/[^/]+/[^/]+/T(?=/|\Z)"
    r"|[A-Za-z]:(?:/[^/]+){0,30}?/AppData/Local/Temp(?=/|\Z)",
    "home": r"/home/[^/]+(?=/|\Z)|/Users/[^/]+(?=/|\Z)|/root(?=/|\Z)|[A-Za-z]:/Users/[^/]+(?=/|\Z)|~(?=/|\Z)",
    "worktree": r"/worktrees/[^/]+(?=/|\Z)",
    "count": r"-(?:[0-9]{1,9}|n|c)\Z|[+-]?[0-9]{1,9}\Z|-n=?[+-]?[0-9]{1,9}\Z|--lines=[+-]?[0-9]{1,9}\Z",
    "lines": r"[0-9]+(?::[0-9]+)?\Z",
    "space": r"\s+",
}


def _rx(name: str) -> Any:
    found = _RX.get(name)
    if found is None:
        flags = re.ASCII | (re.MULTILINE if name in ("patch", "diff") else 0)
        found = _RX[name] = re.compile(_PATTERNS[name], flags)
    return found


def _load() -> None:
    for line in _PROGRAM_TEXT.split("\n"):
        kind, _, names = line.partition(" ")
        for name in names.split():
            _PROGRAMS.setdefault(name, kind)
    for line in _SUB_TEXT.split("\n"):
        if line:
            name, default, *groups = line.split("|")
            table: dict[str, str] = {}
            for group in groups:
                kind, _, subs = group.partition(":")
                for sub in subs.split():
                    table[sub] = kind
            _SUBS[name] = (default, table)
    for line in _VALUE_TEXT.split("\n"):
        name, _, values = line.partition(" ")
        if name:
            _VALUES[name] = frozenset(values.split())


def program_table() -> dict[str, str]:
    """Program, or program and subcommand (`git status`), -> kind: the table that decides shell steps."""
    if not _PROGRAMS:
        _load()
    out = dict(_PROGRAMS)
    for name, (default, table) in _SUBS.items():
        out[name] = default
        for sub, kind in table.items():
            out[f"{name} {sub}"] = kind
    return out


def tables() -> str:
    """The canonical text of all tables that decide a call, one `table<TAB>row` per line: part of the rule digest."""
    if not _PROGRAMS:
        _load()
    named: dict[str, object] = {
        "tool": TOOLS,
        "argument": _ARGUMENT_TEXT,
        "verb": _VERB_TEXT,
        "message": _MESSAGE_WORDS,
        "program": program_table(),
        "rule": {name: rule.__name__ for name, rule in _SPECIAL.items()},
        "filter": _FILTERS,
        "writer": _WRITERS,
        "search": _SEARCHERS,
        "search_tool": _SEARCH_TOOLS,
        "search_key": _SEARCH_KEYS,
        "operand": _PATH_OPERANDS,
        "reference": _REFERENCE_PROGRAMS,
        "value": _VALUE_TEXT,
        "module": _MODULE_PROGRAMS,
        "head": _HEADS,
        "extension": _EXTENSIONS,
        "pattern": _PATTERNS,
        "explaining": _EXPLAINING,
        "command_key": _COMMAND_KEYS,
        "cwd_key": _CWD_KEYS,
        "path_key": _PATH_KEYS,
        "place_key": _PLACE_KEYS,
        "path_list": _PATH_LISTS,
        "target": _TARGET_TEXT,
        "host": _CHAT_HOSTS,
        "setting": _SETTING,
        **shell.tables(),
    }
    lines: list[str] = []
    for name, table in named.items():
        if isinstance(table, str):
            rows: Sequence[object] = table.strip().split("\n")
        elif isinstance(table, dict):
            rows = sorted(table.items())
        elif isinstance(table, frozenset):
            rows = sorted(table)
        else:
            rows = list(table)  # type: ignore[call-overload]
        lines += [f"{name}\t{row!a}" for row in rows]
    return "\n".join(lines) + "\n"


# --- tools by name ------------------------------------------------------------------------------------------------


def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").replace(".", "").lower()


def _words_of(name: str) -> list[str]:
    """Lower-case words of a tool name, whatever its case style (`getUser`, `get-user`, `get_user`)."""
    out: list[str] = []
    word = ""
    for char in name[:200]:
        if char in "_-. :/":
            if word:
                out.append(word)
            word = ""
        elif char.isupper() and word and not word[-1].isupper():
            out.append(word)
            word = char
        else:
            word += char
    if word:
        out.append(word)
    return [w.lower() for w in out]


def _by_name(name: str) -> str:
    if not _VERBS:
        for line in _VERB_TEXT.split("\n"):
            kind, _, verbs = line.partition(" ")
            for verb in verbs.split():
                _VERBS.setdefault(verb, kind)
    words = _words_of(name)
    if not words:
        return ""
    kind = _VERBS.get(words[0], "")
    if kind == "execute" and words[0] in ("send", "post", "create", "add") and not _MESSAGE_WORDS.isdisjoint(words[1:]):
        return "communicate"
    return kind


def _tail_of(tool: str) -> str:
    """The tool's own name behind a server or name-space prefix (`mcp__server__tool`, `functions.exec`), else ''."""
    if tool[:5] == "mcp__" or "__" in tool[1:]:
        return tool[tool.rfind("__") + 2 :]
    for mark in (".", "/", ":"):
        if mark in tool:
            return tool[tool.rfind(mark) + 1 :]
    return ""


def _without_server(tool: str, tail: str) -> str:
    """What follows the server's name where a tool repeats it (`mcp__jira__jira_get_issue`), else ''."""
    server = tool[5:].partition("__")[0]
    rest = tail[len(server) :].lstrip("_-")
    return rest if tool[:5] == "mcp__" and tail.lower().startswith(server.lower()) and rest != tail else ""


def _tool_row(tool: str) -> tuple[str, str, str]:
    """(kind, source, name under which the argument tables know the tool)."""
    found = _TOOL_MEMO.get(tool)
    if found is not None:
        return found
    kind = TOOLS.get(tool, "")
    source, known = "table", tool
    if not kind:
        if not _FOLDED:
            for name in TOOLS:
                _FOLDED.setdefault(_fold(name), name)
        known = _FOLDED.get(_fold(tool), "")
        kind = TOOLS.get(known, "")
    if not kind:
        tail = _tail_of(tool)
        known = (tail if tail in TOOLS else _FOLDED.get(_fold(tail), "")) if tail else ""
        kind = TOOLS.get(known, "")
        source = "name"
        if kind in ("plan", "") or (tool[:5] == "mcp__" and kind in ("wait", "code")):
            kind, known = _by_name(tail or tool) or _by_name(_without_server(tool, tail)), ""
            if not kind and tail:
                kind = _by_name(tool)
    if not kind:
        kind, source, known = "other", "none", ""
    row = (kind, source, known)
    if len(tool) <= 200:
        if len(_TOOL_MEMO) >= _MEMO_SIZE:
            _TOOL_MEMO.clear()
        _TOOL_MEMO[tool] = row
    return row


def tool_kind(tool: str) -> tuple[str, str]:
    """Kind of a tool by its name alone, and the source of it; `shell` and `code` where the arguments decide."""
    return _tool_row(tool)[:2]


def _argument_kind(known: str, arguments: dict[str, Any]) -> str:
    if not _BY_ARGUMENT:
        for line in _ARGUMENT_TEXT.split("\n"):
            if line:
                name, key, pairs = line.split("|")
                table = {}
                for pair in pairs.split():
                    value, _, kind = pair.partition("=")
                    table[value] = kind
                _BY_ARGUMENT[name] = (key, table)
    row = _BY_ARGUMENT.get(known)
    if row is None:
        return ""
    given = arguments.get(row[0])
    text = given if isinstance(given, str) else "" if given is None else _scalar(given)
    if (not text and row[0] == "chars") or row[0] == "text":
        text = text or _text(arguments.get("input")) or _text(arguments.get("data"))
    return row[1].get(text) or (row[1].get("*", "") if text else "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- what a part of a command does --------------------------------------------------------------------------------


def _has(args: list[str], *flags: str) -> bool:
    return any(flag in args for flag in flags)


def _short(args: list[str], letter: str) -> bool:
    """Whether a short option is given, also in a cluster (`-rin`)."""
    return any(a[:1] == "-" and a[:2] != "--" and letter in a[1:] for a in args)


def _operands(part: Part) -> list[str]:
    """Operands of a part: no options, no values of options."""
    values = _VALUES.get(part.program, frozenset())
    out: list[str] = []
    is_value = is_end = False
    for word in part.args:
        if is_value:
            is_value = False
        elif is_end or word[:1] != "-" or word == "-":
            out.append(word)
        elif word == "--":
            is_end = True
        elif word in values:
            is_value = True
    return out


def _files(writes: list[str]) -> list[str]:
    return [w for w in writes if w[:5] != "/dev/" and w[:1] != "&"]


def _named(name: str, default: str) -> str:
    """Kind of a task by its name (`npm run X`, `make X`, `mise run X`)."""
    if _rx("format_name").search(name):
        return "verify" if "check" in name else "edit"
    if _rx("effect_name").match(name):
        return "execute"
    return "verify" if _rx("verify_name").search(name) else default


def _script_kind(path: str) -> str:
    name = path[path.rfind("/") + 1 :]
    return "verify" if _rx("test_script").match(name) else "execute"


def _inline_kind(code: str) -> str:
    text = code[:20_000]
    if _rx("test_call").search(text):
        return "verify"
    if _rx("fetch").search(text) and not _rx("effect").search(text):
        return "research"
    return "execute"


def _method(args: list[str]) -> str:
    for at, word in enumerate(args):
        if word in ("-X", "--request", "--method") and at + 1 < len(args):
            return args[at + 1].upper()
        if word[:2] == "-X" and len(word) > 2 and word[2] != "-":
            return word[2:].upper()
        if word[:10] == "--request=" or word[:9] == "--method=":
            return word.partition("=")[2].upper()
    return ""


_CHAT_HOSTS = (
    "hooks.slack.com",
    "slack.com/api/chat",
    "discord.com/api/webhooks",
    "api.telegram.org",
    "api.sendgrid",
    "api.mailgun",
)


def _curl(part: Part) -> str:
    args = part.args
    method = _method(args)
    if part.program == "curl":
        is_body = not _has(args, "-G", "--get") and any(
            a[:2] in ("-d", "-F", "-T") or a.startswith(("--data", "--form", "--json", "--upload-file")) for a in args
        )
    else:
        is_body = any(a.startswith(("--post-", "--body-")) for a in args)
    if any(host in a for a in args for host in _CHAT_HOSTS) and (is_body or method not in ("", "GET", "HEAD")):
        return "communicate"
    if method:
        return "research" if method in ("GET", "HEAD", "OPTIONS") else "execute"
    return "execute" if is_body else "research"


def _git(part: Part) -> str:
    sub, args = part.subcommand, part.args
    rest = args[args.index(sub) + 1 :] if sub in args else []
    plain = [a for a in rest if a[:1] != "-"]
    if sub == "":
        return "read"
    if sub == "branch":
        is_act = _has(rest, "-d", "-D", "-m", "-M", "-c", "-C", "--delete", "--move", "-f", "-u") or (
            plain and len(plain) == len(rest)
        )
        return "execute" if is_act else "read"
    if sub == "tag":
        return "read" if not plain or _has(rest, "-l", "--list", "--contains", "--points-at") else "execute"
    if sub == "remote":
        return (
            "execute"
            if plain[:1] and plain[0] in ("add", "remove", "rm", "rename", "set-url", "prune", "update")
            else "read"
        )
    if sub in ("config", "notes"):
        is_read = _has(rest, "--get", "--list", "-l", "--get-all", "--get-regexp", "--show-origin") or (
            len(plain) < 2 and not _has(rest, "--unset")
        )
        return "read" if is_read or plain[:1] in (["get"], ["list"], ["show"]) else "execute"
    if sub == "stash":
        return "read" if plain[:1] in (["list"], ["show"]) else "edit"
    if sub in ("worktree", "submodule", "bisect", "sparse-checkout"):
        return "read" if plain[:1] in (["list"], ["status"], ["log"], []) else "execute"
    if sub == "apply" and _has(rest, "--check", "--stat", "--numstat", "--summary"):
        return "verify" if "--check" in rest else "read"
    return _by_sub(part)


def _gh(part: Part) -> str:
    plain = [a for a in part.args if a[:1] != "-"]
    noun = plain[0] if plain else ""
    verb = plain[1] if len(plain) > 1 else ""
    if noun == "api":
        method = _method(part.args)
        is_write = method not in ("", "GET") or (
            not method and _has(part.args, "-f", "-F", "--field", "--raw-field", "--input")
        )
        if is_write and verb[:7] != "graphql":
            return "communicate" if "comments" in verb or "reviews" in verb or "replies" in verb else "execute"
        if is_write and any("mutation" in a for a in part.args):
            return "execute"
        return "research"
    if noun == "search":
        return "research"
    if verb in ("comment", "review"):
        return "communicate"
    if noun == "run":
        return "operate" if verb in ("rerun", "cancel", "delete") else "execute" if verb == "download" else "wait"
    if verb in ("checks", "watch"):
        return "wait"
    if verb in ("view", "list", "status", "diff", "ls", "show", "") or noun in ("status", "help", "--version"):
        return "read"
    if noun in ("issue", "workflow", "project", "label", "milestone"):
        return "operate"
    return "execute"


def _npm(part: Part) -> str:
    sub = part.subcommand
    if not sub:
        return "execute"
    if sub[:4] == "run ":
        return _named(sub[4:], "execute")
    if sub == "run":
        return "read"
    default, table = _SUBS[part.program]
    if _changes_settings(part):
        return "execute"
    if sub == "workspaces":
        plain = [a for a in part.args if a[:1] != "-" and a != sub]
        task = plain[2:] if plain[1:2] == ["run"] else plain[1:]
        return _named(task[0], "execute") if plain[:1] in (["run"], ["foreach"]) and task else "read"
    kind = table.get(sub)
    if kind is not None:
        return kind
    if sub in (
        "install",
        "i",
        "ci",
        "add",
        "remove",
        "uninstall",
        "update",
        "upgrade",
        "init",
        "create",
        "publish",
        "link",
        "start",
        "dlx",
    ):
        return "execute"
    if part.program == "bun" and "." in sub:
        return _script_kind(sub)
    return _named(sub, default) if part.program != "npm" else default


def _make(part: Part) -> str:
    names = [a for a in _operands(part) if "=" not in a and not a.isdigit()]
    sub = part.subcommand
    if part.program in ("make", "gmake"):
        if _has(part.args, "-n", "--dry-run", "-p"):
            return "read"
        name = names[0] if names else ""
        return _named(name, "verify") if name else "verify"
    if part.program in ("just", "task", "rake", "turbo", "nx", "tox", "nox", "lerna"):
        name = sub[4:] if sub[:4] == "run " else sub
        if name in ("", "--list", "-l"):
            return "verify" if part.program in ("tox", "nox") else "read" if part.program != "task" else "execute"
        return _named(name, "verify" if part.program in ("tox", "nox") else "execute")
    if sub[:4] == "run ":
        return _named(sub[4:], "execute")
    return _by_sub(part)


def _cargo(part: Part) -> str:
    if part.subcommand == "fmt" and _has(part.args, "--check"):
        return "verify"
    return _by_sub(part)


def _formatter(part: Part) -> str:
    args = part.args
    if (
        _has(args, "--check", "--check-only", "--diff", "-c", "--list-different", "--dry-run", "-n", "--Werror")
        and part.program != "isort"
    ):
        return "verify"
    if part.program == "isort":
        return "verify" if _has(args, "-c", "--check", "--check-only", "--diff") else "edit"
    if part.program in ("gofmt", "goimports", "shfmt", "prettier"):
        return "edit" if _short(args, "w") or _has(args, "--write") else "verify"
    if part.program == "clang-format":
        return "edit" if _short(args, "i") else "read"
    if part.program in ("ruff", "biome", "sqlfluff", "terraform"):
        return _by_sub(part)
    if part.program in ("autopep8", "yapf", "autoflake"):
        return "edit" if _short(args, "i") or _has(args, "--in-place", "--in-place-recursive") else "read"
    return "edit"


def _sed(part: Part) -> str:
    return (
        "edit"
        if any(
            a[:2] == "-i" or a.startswith("--in-place") or (a[:1] == "-" and a[:2] != "--" and a[-1:] == "i")
            for a in part.args
        )
        else "read"
    )


def _find(part: Part) -> str:
    args = part.args
    if "-delete" in args:
        return "edit"
    for flag in ("-exec", "-execdir", "-ok", "-x", "--exec"):
        if flag in args[:-1]:
            inner = shell.parse(" ".join(args[args.index(flag) + 1 :]))
            kind = part_kind(inner[0])[0] if inner else "read"
            return kind if kind in ATTEMPTS else "read"
    return "read"


def _interpreter(part: Part) -> str:
    program, args = part.program, part.args
    if program == "perl" and any(
        a[:1] == "-" and a[:2] != "--" and "i" in a[1:6] and a[1:2] in "pn0il" for a in args[:3]
    ):
        return "edit"
    if (program in ("php", "perl", "ruby") and args[:1] in (["-l"], ["-c"], ["-wc"])) or (
        program == "node" and _has(args[:2], "--check", "--test", "-c")
    ):
        return "verify"
    if program in ("sh", "bash", "zsh", "dash", "ksh") and args[:1] == ["-n"]:
        return "verify"
    if part.inline_code is not None:
        return _inline_kind(part.inline_code)
    if not args or args[0] in ("--version", "-V", "-v", "--help", "-h"):
        return "read" if args else "execute"
    if program == "java":
        return "verify" if any("junit" in a.lower() for a in args) else "execute"
    operands = _operands(part)
    if not operands:
        return "execute"
    name = operands[0][operands[0].rfind("/") + 1 :]
    if name in ("manage.py", "setup.py", "artisan", "waf", "mach", "x.py"):
        return (
            "verify"
            if operands[1:2] and _rx("verify_name").search(operands[1]) and operands[1] != "install"
            else "execute"
        )
    if program in ("bun", "deno"):
        return _npm(part) if program == "bun" else _by_sub(part)
    return _script_kind(operands[0])


_SETTING = frozenset(
    _names(
        """
        set delete rm unset edit fix use remove create update mv push import replace-provider --set --add --append
        --prepend --remove --remove-key --unset --edit
        """
    )
)


def _changes_settings(part: Part) -> bool:
    """Whether a subcommand that mostly tells (`config`, `env`, `state`, `version`) is asked to change something."""
    sub, args = part.subcommand, part.args
    if sub not in ("config", "env", "state", "version"):
        return False
    if part.program == "poetry" and sub in ("config", "version") and len(_operands(part)) > (sub == "config") + 1:
        return True
    return sub != "version" and not _SETTING.isdisjoint(args)


def _by_sub(part: Part) -> str:
    default, table = _SUBS["kubectl" if part.program == "oc" else part.program]
    sub = part.subcommand
    if _changes_settings(part):
        return "execute"
    kind = table.get(sub)
    if kind is None and " " in sub:
        kind = table.get(sub.split(" ")[1])
    if kind is None and part.program == "uv" and sub == "pip":
        return "read" if _has(part.args, "list", "show", "freeze", "tree", "check") else "execute"
    if kind is None and part.program in ("mvn", "gradle", "gradlew", "bazel"):
        for word in part.args:
            if word in table:
                return table[word]
    if not sub and default == "execute" and _has(part.args, "--version", "--help", "-h", "-V", "version"):
        return "read"
    return kind or default


def _docker(part: Part) -> str:
    sub = part.subcommand
    plain = [a for a in part.args if a[:1] != "-"]
    if sub[:8] == "compose ":
        default, table = _SUBS["docker-compose"]
        return table.get(sub[8:], default)
    if sub in ("container", "image", "volume", "network", "system") and len(plain) > 1:
        verb = plain[plain.index(sub) + 1] if sub in plain[:-1] else ""
        return "read" if verb in ("ls", "list", "inspect", "df", "info") else _SUBS["docker"][1].get(verb, "execute")
    if sub == "buildx":
        return "read" if _has(plain, "ls", "inspect") else "verify"
    return _by_sub(part)


def _kubectl(part: Part) -> str:
    if part.subcommand == "rollout":
        return "wait" if _has(part.args, "status", "history") else "operate"
    if part.subcommand == "config":
        return "read" if _has(part.args, "view", "current-context", "get-contexts") else "execute"
    return _by_sub(part)


def _misc(part: Part) -> str:
    program, args = part.program, part.args
    if program == "tail":
        return "wait" if _short(args, "f") or _short(args, "F") or "--follow" in args else "read"
    if program == "journalctl":
        return "wait" if _short(args, "f") else "read"
    if program == "crontab":
        return "read" if "-l" in args else "operate"
    if program in ("squeue", "qstat", "atq"):
        return "wait"
    if program == "service":
        return "wait" if "status" in args or "--status-all" in args else "operate"
    if program == "tar":
        return (
            "read"
            if (
                args
                and "t" in args[0].lstrip("-")[:3]
                and args[0][:2] != "--"
                and "x" not in args[0]
                and "c" not in args[0]
            )
            or "--list" in args
            else "execute"
        )
    if program == "unzip":
        return "read" if _short(args, "l") or _short(args, "p") or _short(args, "t") else "execute"
    if program == "tee":
        return "edit" if _files(_operands(part)) else "read"
    if program == "command":
        return "read"
    if program == "dpkg":
        return "read" if _short(args, "l") or _short(args, "L") or _short(args, "s") or _short(args, "S") else "execute"
    if program == "crictl":
        return "read"
    if program == "sort":
        return "edit" if "-o" in args else "read"
    if program in ("screen",):
        return "wait" if _has(args, "-ls", "-list") else "operate"
    if program == "date":
        return "execute" if _has(args, "-s", "--set") else "read"
    if program == "aws":
        plain = [a for a in args if a[:1] != "-"]
        verb = plain[1] if len(plain) > 1 else ""
        return (
            "read"
            if verb[:9] == "describe-" or verb[:5] == "list-" or verb[:4] == "get-" or verb == "ls"
            else "execute"
        )
    if program in ("gcloud", "az"):
        return "read" if _has(args, "list", "describe", "show", "info", "version") else "execute"
    if program == "airflow":
        verb = "".join([a for a in args if a[:1] != "-"][1:2])
        asks = verb.startswith(("list", "show", "state", "details", "report", "next-execution"))
        return "read" if asks else _by_sub(part)
    if program == "rpm":
        asks = bool(args) and (args[0][:2] in ("-q", "-V") or args[0] in ("--query", "--verify"))
        return "read" if asks else "execute"
    if program == "postconf":
        return "execute" if _short(args, "e") or _short(args, "X") or _short(args, "#") else "read"
    if program == "yq":
        return "edit" if _short(args, "i") or _has(args, "--inplace", "--in-place") else "read"
    if program == "xmllint":
        return "verify" if _has(args, "--noout", "--valid", "--schema", "--relaxng", "--dtdvalid") else "read"
    if program == "R":
        return "verify" if args[:1] == ["CMD"] and _has(args, "check", "build") else "execute"
    if program == "ip":
        return "execute" if _has(args, "add", "del", "set", "flush") else "read"
    if program == "cmake":
        return "execute" if _has(args, "--install") else "read" if _has(args, "--version", "-E") else "verify"
    if program == "nc":
        return "read" if _short(args, "z") else "execute"
    if program == "pre-commit":
        return "execute" if part.subcommand in ("install", "autoupdate", "uninstall") else "verify"
    if program in ("http", "https", "xh"):
        return "execute" if any(a in ("POST", "PUT", "PATCH", "DELETE") for a in args[:2]) else "research"
    if program in ("sphinx", "mkdocs"):
        return "verify" if part.subcommand == "build" else "execute"
    return _PROGRAMS.get(program, "other")


_SPECIAL: dict[str, Any] = {
    "git": _git,
    "gh": _gh,
    "npm": _npm,
    "pnpm": _npm,
    "yarn": _npm,
    "curl": _curl,
    "wget": _curl,
    "sed": _sed,
    "find": _find,
    "fd": _find,
    "docker": _docker,
    "podman": _docker,
    "kubectl": _kubectl,
    "oc": _kubectl,
    "cargo": _cargo,
}
_SPECIAL.update(
    dict.fromkeys(_names("make gmake just task rake turbo nx mise tox nox lerna hatch pdm poetry pipenv rye uv"), _make)
)
_SPECIAL.update(
    dict.fromkeys(
        _names(
            """
            black prettier isort gofmt goimports shfmt rustfmt clang-format autopep8 yapf autoflake pyupgrade ruff biome
            sqlfluff
            """
        ),
        _formatter,
    )
)
_SPECIAL.update(
    dict.fromkeys(
        _names(
            """
            python pypy ipython node bun deno tsx ts-node ruby perl php lua java Rscript julia sh bash zsh dash ksh
            elixir             osascript expect
            """
        ),
        _interpreter,
    )
)
_SPECIAL.update(
    dict.fromkeys(
        _names(
            """
            tail journalctl crontab squeue qstat atq service tar unzip tee command dpkg sort screen date aws gcloud az
            ip airflow rpm postconf yq xmllint R cmake nc pre-commit http https xh sphinx mkdocs
            """
        ),
        _misc,
    )
)
_ASKING = frozenset({"--version", "--help", "-V", "--usage", "-version"})
_LOCAL_CHECKS = frozenset({"test", "check", "build", "lint", "verify", "compile"})
_SETUP_LIKE = frozenset({"echo", "printf", "export", "set"})
_CODE_PROGRAMS = frozenset(name for name, rule in _SPECIAL.items() if rule is _interpreter)


def part_kind(part: Part) -> tuple[str, bool]:
    """Kind of one part of a command, and whether it is set-up that never speaks for the command."""
    program = part.program
    if not _PROGRAMS:
        _load()
    if program in _WRITERS:
        if program == "":
            return ("edit", False) if _files(part.writes) else ("read", True)
        if program != "tee" and _files(part.writes):
            return "edit", False
        if program == "cat":
            return "read", False
    if part.is_call:
        return "read", True
    if part.args and _ASKING.issuperset(part.args) and program not in _SETUP_LIKE:
        return "read", False
    if "/" in part.path and program in _LOCAL_CHECKS and part.path[:5] not in ("/bin/", "/usr/"):
        return "verify", False
    rule = _SPECIAL.get(program)
    if rule is not None:
        return (
            (rule(part), False)
            if program != "bun"
            else (_npm(part) if part.inline_code is None else _inline_kind(part.inline_code), False)
        )
    if program in _SUBS:
        return _by_sub(part), False
    kind = _PROGRAMS.get(program)
    if kind is None:
        kind = _PROGRAMS.get(program.lower())
        if kind == "research" and "-method" in map(str.lower, part.args[:-1]):
            asked = part.args[[a.lower() for a in part.args].index("-method") + 1]
            kind = "research" if asked.lower() in ("get", "head") else "execute"
    if kind is not None:
        return ("read", True) if kind == "setup" else (kind, False)
    if "-m" in part.words:
        return _script_kind(program), False
    if "/" in part.path or _rx("script").match(program):
        return _script_kind(part.path), False
    return "other", False


def _is_filter(parts: Parts, at: int) -> bool:
    """Whether the part only reworks what a pipe hands it. A filter fed by plain text that ends in a file is a write."""
    part = parts[at]
    if not part.pipe_index or part.is_xargs:
        return False
    program = part.program
    if program in _CODE_PROGRAMS:
        code = part.inline_code
        is_stdin = code is not None and ("stdin" in code or program in ("perl", "ruby"))
        return is_stdin and not (code is not None and part.heredoc is not None)
    if program not in _FILTERS and program.lower() not in _FILTERS:
        return False
    if program == "tee" or _files(part.writes):
        return not _is_written(parts, at)
    return True


def _is_written(parts: Parts, at: int) -> bool:
    """Whether all before this part in its pipe is plain text (`echo`, `printf`, `cat`), and it ends in a file."""
    part = parts[at]
    if not (_files(_operands(part)) if part.program == "tee" else _files(part.writes)):
        return False
    for back in range(1, part.pipe_index + 1):
        before = parts[at - back] if at >= back else None
        if before is None or not (
            before.program in ("echo", "printf")
            or (before.program == "cat" and (before.heredoc is not None or part.program == "tee"))
        ):
            return False
    return True


def _runs(part: Part, names: list[str]) -> bool:
    """Whether a part runs one of these files: as its program, as a script operand, or behind `-f`."""
    wanted = {n[n.rfind("/") + 1 :] for n in names}
    if part.program in wanted or part.path[part.path.rfind("/") + 1 :] in wanted:
        return True
    if part.program in (
        "cat",
        "ls",
        "head",
        "tail",
        "wc",
        "stat",
        "chmod",
        "grep",
        "rm",
        "mv",
        "cp",
        "git",
        "diff",
        "file",
        "less",
        "echo",
    ):
        return False
    return any(
        a[a.rfind("/") + 1 :].partition("=")[2] in wanted or a[a.rfind("/") + 1 :] in wanted
        for a in (*part.args, *part.reads)
    )


def choose(parts: Parts) -> tuple[int, str]:
    """Index and kind of the part that speaks for a command (METHOD 3), chosen without looking at the outcome.

    The last part whose kind is an attempt, leaving out set-up, filters behind a pipe and the writing of a file that a
    later part runs; where there is none, the last part that is not left out; where all are, the last part.
    """
    fallback = -1
    fallback_kind = ""
    for at in range(len(parts) - 1, -1, -1):
        part = parts[at]
        kind, is_setup = part_kind(part)
        if is_setup or _is_filter(parts, at):
            continue
        if part.pipe_index and kind == "read" and part.program in _FILTERS and _is_written(parts, at):
            kind = "edit"
        if kind in ATTEMPTS:
            if kind == "edit" and part.program in _WRITERS and at + 1 < len(parts):
                names = _files(part.writes) or (_files(_operands(part)) if part.program == "tee" else [])
                if any(_runs(later, names) for later in parts[at + 1 :]):
                    continue
            return at, kind
        if fallback < 0:
            fallback, fallback_kind = at, kind
    if fallback >= 0:
        return fallback, fallback_kind
    last = len(parts) - 1
    return last, part_kind(parts[last])[0] if parts else "other"


# --- paths and targets --------------------------------------------------------------------------------------------


def _is_absolute(path: str) -> bool:
    return (
        path[:1] in ("/", "~", "$", "<")
        or path[:2] == "\\\\"
        or (path[1:2] == ":" and _rx("drive").match(path) is not None)
    )


def normalise(path: str) -> str:
    """A path as text: `/` separators, no `.`, no `..` where it can be resolved, no trailing slash."""
    if "\\" in path:
        path = path.replace("\\", "/")
    if "/." not in path and "//" not in path and path[:1] != "." and path[-1:] != "/":
        return path
    is_root = path[:1] == "/"
    out: list[str] = []
    for name in path.split("/"):
        if name == "" or name == ".":
            continue
        if name == "..":
            if out and out[-1] != "..":
                if len(out) > 1 or not (out[0][:1] in "~$<" or out[0][-1:] == ":"):
                    out.pop()
                continue
            if is_root:
                continue
        out.append(name)
    return ("/" if is_root else "") + "/".join(out) or ("/" if is_root else ".")


def resolve(path: str, cwd: str | None) -> str:
    """A path joined to the working directory (where it is known) and normalised; a `::` test id behind it is kept."""
    if not path:
        return ""
    file, mark, test = path.partition("::")
    if cwd and not _is_absolute(file):
        file = f"{cwd}/{file}"
    return normalise(file) + mark + test


def place(target: str, base: str | None) -> str:
    """A resolved target as it is stored: relative to the session's first working directory, else below a known root.

    Pure text, idempotent; targets that are no absolute path are returned as they are. `base` may be None.
    """
    first = target[:1]
    if first != "/" and first != "~" and target[1:2] != ":":
        return target
    if first not in "/~" and _rx("drive").match(target) is None:
        return target
    if "\\" in target:
        target = target.replace("\\", "/")
    if base:
        root = normalise(base)
        if _is_absolute(root):
            if target == root:
                return "."
            if target.startswith(root if root[-1:] == "/" else f"{root}/"):
                rest = target[len(root) :].lstrip("/")
                return rest if rest and not _is_absolute(rest) else target if rest else "."
    m = _rx("temporary").match(target)
    if m is not None:
        return "<tmp>" + target[m.end() :]
    m = _rx("worktree").search(target)
    if m is not None:
        return "<worktree>" + target[m.end() :]
    m = _rx("home").match(target)
    if m is not None:
        return "<home>" + target[m.end() :]
    return target


def clean_url(url: str) -> str:
    """A URL without user information, query and fragment; scheme and host in lower case."""
    scheme, mark, rest = url.strip().partition("://")
    if not mark:
        return url.strip()
    for stop in "?#":
        rest = rest.partition(stop)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.rpartition('@')[2].lower()}{slash}{path}".rstrip("/")


def _is_url(text: str) -> bool:
    at = text.find("://", 1, 18)
    return at > 0 and text[:at].replace("+", "").isalnum()


def patch_files(text: str) -> list[str]:
    """Files named by the headers of a patch, in order, each once (`*** Update File:` or `+++ b/`)."""
    found = _rx("patch").findall(text) or [f for f in _rx("diff").findall(text) if f != "/dev/null"]
    out: list[str] = []
    for name in found[:_MAX_TARGETS]:
        name = name.strip()
        if name and name not in out:
            out.append(name)
    return out


def _is_path(word: str, is_strict: bool) -> bool:
    if not word or len(word) > 2_000 or word[0] == "-" or " " in word or "\n" in word:
        return False
    if (word[0] in "./~" and word != "...") or word[1:3] == ":\\":
        return len(word) < 2 or word[:1] != "/" or len(word.split("/")) < 60
    file = word.partition("::")[0]
    dot = file.rfind(".")
    if dot > 0 and file[dot + 1 :].lower() in _EXTENSIONS and "=" not in file:
        return True
    if is_strict or "=" in word or word[0] in "@'\"{[(|":
        return False
    return "/" in word or "::" in word


def _part_targets(part: Part, kind: str, cwd: str | None) -> list[str]:
    """Targets of a part: resolved paths or URLs, the first one first; empty where it has none."""
    program = part.program
    if part.cwd_after_cd is not None:
        cwd = resolve(part.cwd_after_cd, cwd)
    args = part.args
    if program in ("git", "make", "gmake", "pnpm", "ninja", "go", "poetry") and "-C" in args[:-1]:
        cwd = resolve(args[args.index("-C") + 1], cwd)
    elif program in ("npm", "yarn") and args and args[0] in ("--prefix", "--cwd") and len(args) > 1:
        cwd = resolve(args[1], cwd)
    if program in ("apply_patch", "applypatch") or (program in ("patch", "git") and part.heredoc):
        files = patch_files(part.heredoc or "\n".join(args))
        if files:
            return [resolve(f, cwd) for f in files]
    if kind == "edit" and (program in _WRITERS or (part.writes and part.pipe_index)):
        files = _files(part.writes) or (_files(_operands(part)) if program == "tee" else [])
        if files:
            return [resolve(f, cwd) for f in files]
    if part.inline_code is not None and program == "perl" and kind == "edit":
        args = args[args.index(part.inline_code) + 1 :] if part.inline_code in args else args
        return [resolve(a, cwd) for a in args if a[:1] != "-"]
    if part.inline_code is not None and program in _CODE_PROGRAMS:
        m = _rx("url").search(part.inline_code[:20_000])
        return [clean_url(m.group())] if m else []
    operands = _operands(part)
    if program == "git":
        operands = _git_paths(part, operands)
    elif program == "gh" and operands[:1] == ["api"]:
        return [operands[1].partition("?")[0].lstrip("/")] if len(operands) > 1 and "/" in operands[1] else []
    elif program == "unittest":
        names = [o for o in operands if o != "discover"][:1]
        return [resolve(n, cwd) if "/" in n or n.endswith(".py") else n for n in names]
    elif program in ("find", "fd"):
        operands = _until_option(args, 0 if program == "find" else 1)
    count = _PATH_OPERANDS.get(program)
    is_strict = program in _REFERENCE_PROGRAMS
    if count:
        if _has(args, "-e", "-f", "--regexp", "--file") and program not in ("chmod", "chown", "chgrp", "jq", "yq"):
            count = 0
        if program in ("sed",) and any(a[:2] == "-e" for a in args):
            count = 0
        operands = [operand for operand in operands[count:] if operand != "-"]
    if (
        program
        in (
            "sh",
            "bash",
            "zsh",
            "dash",
            "python",
            "node",
            "ruby",
            "perl",
            "php",
            "lua",
            "bun",
            "deno",
            "tsx",
            "ts-node",
        )
        and count == 0
    ):
        operands = (
            operands[1:2]
            if program == "deno" or (program == "bun" and operands[:1] in (["run"], ["test"]))
            else operands[:1]
        )
        if (program == "python" and operands[:1] == ["-"]) or (
            program in ("sh", "bash", "zsh", "dash") and args[:1] == ["-s"]
        ):
            operands = []
    if program in ("sqlite3", "psql", "mysql") or (
        program == "go" and part.subcommand in ("get", "mod", "install", "list", "env")
    ):
        is_strict = True
    out: list[str] = []
    for word in operands:
        if _is_url(word):
            out.append(clean_url(word))
        elif (
            program in ("curl", "wget")
            and ("." in word or word.startswith("localhost"))
            and "/" in word + "/"
            and " " not in word
            and word[:1] not in "{@'\""
        ):
            out.append(clean_url(f"http://{word}"))
        elif program in ("curl", "wget"):
            continue
        elif (
            count is not None
            and word
            and "\n" not in word
            and len(word) < 2_000
            and word[0] not in "$<>|"
            and not is_strict
        ):
            if program in ("pytest", "mypy", "tsc", "eslint", "bash", "sh") or not word.isdigit():
                out.append(resolve(word, cwd))
        elif program == "git" or (kind != "communicate" and _is_path(word, is_strict)):
            out.append(resolve(word, cwd))
        elif not is_strict and not out and kind in ("verify", "execute", "other") and _rx("dotted").match(word):
            out.append(word if program in _MODULE_PROGRAMS or "-m" in part.words else resolve(word, cwd))
        if len(out) >= _MAX_TARGETS:
            break
    if not out and program not in _PROGRAMS and program not in _SPECIAL and program not in _SUBS:
        if "-m" in part.words:
            return [program]
        if "/" in part.path or _rx("script").match(program):
            return [resolve(part.path, cwd)]
    return out


def _until_option(args: list[str], skip: int) -> list[str]:
    out: list[str] = []
    for word in args:
        if word[:1] in "-(!" or word == "\\(":
            if word in ("-H", "-L", "-P", "-E", "-O3"):
                continue
            break
        out.append(word)
    return out[skip:]


def _git_paths(part: Part, operands: list[str]) -> list[str]:
    sub, args = part.subcommand, part.args
    if "--" in args:
        return args[args.index("--") + 1 :]
    rest = args[args.index(sub) + 1 :] if sub in args else []
    plain = [a for a in rest if a[:1] != "-"]
    if sub in ("add", "rm", "mv", "restore", "apply", "am", "blame", "clean", "stage"):
        if sub == "restore" and "--source" in rest:
            plain = [a for a in plain if a != rest[min(len(rest) - 1, rest.index("--source") + 1)]]
        return plain
    if sub in ("checkout", "diff", "show", "log", "ls-files", "reset", "grep", "cat-file", "ls-tree"):
        out = []
        for word in plain[1:] if sub == "grep" else plain:
            path = word.partition(":")[2] if ":" in word and sub in ("show", "cat-file") else word
            if path and _is_path(path, True) and ".." not in path.split("/")[0]:
                out.append(path)
        return out
    return []


def _head(part: Part, kind: str) -> str:
    """Program and subcommand of a part (`npm run build`): its target where no operand is one."""
    program, sub = part.program, part.subcommand
    if program in ("gh", "glab", "aws", "gcloud", "az", "uv"):
        plain = [a for a in part.args if a[:1] != "-"][:2]
        return " ".join([program, *[p for p in plain if _rx("simple").match(p)]])
    is_headed = program in _HEADS or (kind == "other" and part.args[:1] == [sub] and _rx("simple").match(sub))
    if sub and is_headed and sub[:1] not in "-$./" and len(sub) < 80 and "\n" not in sub:
        return f"{program} {sub}"
    if program == "kubectl" and sub:
        return f"{program} {sub}"
    return program[:200]


# --- fingerprints -------------------------------------------------------------------------------------------------

_EXPLAINING = frozenset(
    _names(
        """
        description reason reasoning thought thoughts explanation task_progress rationale justification security_risk
        activeForm timeout timeout_ms timeoutMs timeout_s timeout_seconds time_out summary_of_change toolSummary
        toolAction waitForPreviousTools is_background_reason sandbox_permissions with_escalated_permissions
        requires_approval kernel_init_code impl_source confirmation_state yield_time_ms max_output_tokens
        dangerouslyDisableSandbox instruction_summary intent _i hidden blocking
        """
    )
)
_COMMAND_KEYS = (
    "command",
    "cmd",
    "script",
    "commandLine",
    "CommandLine",
    "shell_command",
    "bash_command",
    "test_cmd",
    "input",
    "code",
)
_CWD_KEYS = ("workdir", "cwd", "working_dir", "working_directory", "workingDirectory", "Cwd", "dir_path", "directory")


def canonical(value: object, depth: int = 0) -> str:
    """One text for one meaning: trimmed lower-case strings, sorted keys, no nulls, 1 equals 1.0, lists in order."""
    if isinstance(value, str):
        text = value.strip().lower()
        return f"s{len(text)}:{text}"
    if value is True:
        return "t"
    if value is False:
        return "f"
    if isinstance(value, int):
        return f"i{value:x};"
    if isinstance(value, float):
        return f"i{int(value):x};" if value.is_integer() else f"d{value!r};"
    if value is None:
        return "n"
    if depth > 40:
        return "…"
    if isinstance(value, dict):
        keys = sorted((str(k), k) for k, v in value.items() if v is not None) if value else []
        return "{" + "".join(f"{canonical(name)}={canonical(value[key], depth + 1)}" for name, key in keys) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + "".join(canonical(v, depth + 1) for v in value) + "]"
    return f"?{type(value).__name__}"


def _digest(tool: str, text: str) -> str:
    return sha256(f"{tool}\x1f{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _search_print(part: Part) -> str:
    values = _VALUES["rg"]
    out: list[str] = []
    is_value = False
    for word in part.args:
        if is_value:
            is_value = False
        elif word in ("-e", "--regexp"):
            continue
        elif word[:1] == "-" and word != "-":
            is_value = word in values
        elif word not in (".", "./"):
            out.append(word.replace('"', "").replace("'", "").strip())
    return "grep\x1f" + "\x1f".join(out)


def _command_print(parts: Parts, command: str) -> str:
    """Canonical text of a command: no `cd`, assignments, time-outs, trailing `| head -N` or `; echo $?` (METHOD 12)."""
    if parts.is_truncated or not parts:
        return command.strip().lower()
    end = len(parts)
    while end > 1:
        last = parts[end - 1]
        if (last.program in ("head", "tail") and last.pipe_index and all(_rx("count").match(a) for a in last.args)) or (
            last.program in ("echo", "printf")
            and not last.writes
            and any("$?" in a or "PIPESTATUS" in a for a in last.args)
        ):
            end -= 1
        else:
            break
    out: list[str] = []
    for part in parts[:end]:
        program = part.program
        if (not program and not part.writes) or (program == "cd" and len(parts) > 1):
            continue
        if program in _SEARCHERS:
            text = _search_print(part)
        elif program == "git" and part.subcommand == "grep":
            text = "git" + _search_print(part)
        else:
            text = program + "\x1f" + "\x1f".join(part.args)
        if part.place:
            text = f"{part.place}\x1d{text}"
        if part.is_xargs:
            text = f"xargs\x1d{text}"
        if part.writes:
            text += "\x1d>" + "\x1f".join(part.writes)
        if part.reads:
            text += "\x1d<" + "\x1f".join(part.reads)
        if part.heredoc is not None:
            text += "\x1d<<" + part.heredoc.strip()
        out.append(text.strip())
    return "\x1e".join(out).lower()


# --- calls --------------------------------------------------------------------------------------------------------


class Call:
    """What one call does.

    `kind_source`: `table`, `command`, `name`, `log` or `none`. `kind_differs`: the log said another kind and the table
    won. `target`: the first of `targets`, resolved against the working directory, not yet written relative to the
    session's base (`place` does that), unmasked. `program`: name of the program whose exit status the call
    returns, '' where it is no shell step. `is_exit_masked`: a failure of the chosen part would not show in that status.
    `is_piped`: that program is a member of a pipe.
    """

    __slots__ = (
        "action",
        "fingerprint",
        "is_background",
        "is_exit_masked",
        "is_piped",
        "kind",
        "kind_differs",
        "kind_source",
        "program",
        "target",
        "targets",
        "tool",
    )

    tool: str
    action: str
    kind: str
    kind_source: str
    kind_differs: bool
    target: str
    targets: list[str]
    fingerprint: str
    program: str
    is_exit_masked: bool
    is_piped: bool
    is_background: bool

    def __repr__(self) -> str:
        return f"Call({self.action!r}, {self.kind!r}, {self.target!r})"


# kind, program that did the work, targets, exit program, is masked, is piped, is background, canonical text
_COMMANDS: dict[tuple[str, str | None], Any] = {}


def _written(part: Part) -> str:
    """The program as the command names it (`python3`), where that is the one that does the work."""
    name = part.path.replace("\\", "/").rsplit("/", 1)[-1]
    return name if shell.base_name(name) == part.program else part.program


def _exiting(part: Part) -> str:
    """Whose exit status a command has; of git, its subcommand says what a status means."""
    is_asked = part.program == "git" and part.subcommand in ("grep", "diff")
    return f"git {part.subcommand}" if is_asked else part.program


def _read_command(command: str, cwd: str | None) -> Any:
    key = (command, cwd)
    found = _COMMANDS.get(key)
    if found is not None:
        return found
    parts = shell.parse(command)
    if not parts:
        text = command.strip()
        result: Any = ("wait" if not text else "read", "", [], "", False, False, False, text.lower())
    else:
        at, kind = choose(parts)
        part = parts[at]
        targets = _part_targets(part, kind, cwd) or [_head(part, kind)]
        exit_part = parts[parts.exit_part]
        result = (
            kind,
            _written(part),
            targets,
            _exiting(exit_part),
            not part.is_propagated or part.is_background,
            exit_part.pipe_size > 1,
            part.is_background,
            _command_print(parts, command),
        )
    if len(command) <= _MEMO_TEXT:
        if len(_COMMANDS) >= _MEMO_SIZE:
            _COMMANDS.clear()
        _COMMANDS[key] = result
    return result


def _quoted(word: str) -> str:
    if word and word.isalnum():
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def _argv(words: list[Any]) -> str:
    """The command text of an argument vector; `["bash", "-lc", text]` gives the text."""
    texts = [w if isinstance(w, str) else "" if w is None else str(w) for w in words[:2_000]]
    if (
        len(texts) == 3
        and texts[0][texts[0].rfind("/") + 1 :] in ("bash", "sh", "zsh")
        and texts[1] in ("-lc", "-c", "-lic", "-ic")
    ):
        return texts[2]
    return " ".join(_quoted(t) for t in texts)


def _command_of(arguments: dict[str, Any]) -> tuple[str, str]:
    """Command text of a shell tool's arguments and the key it was found under."""
    for key in _COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str):
            return value, key
        if isinstance(value, list) and value:
            return _argv(value), key
    for key in ("argv", "args", "action"):
        value = arguments.get(key)
        if isinstance(value, list) and value:
            return _argv(value), key
        if isinstance(value, dict) and key == "action":
            return _command_of(value)[0], key
    return "", ""


_PATH_KEYS = (
    "file_path",
    "path",
    "notebook_path",
    "absolute_path",
    "filePath",
    "filepath",
    "filename",
    "file",
    "target_file",
    "AbsolutePath",
    "TargetFile",
    "relative_path",
    "rel_path",
    "relativePath",
    "source_path",
    "old_path",
    "file_name",
    "directory",
    "dir_path",
    "relative_workspace_path",
    "target_notebook",
    "image_path",
    "DirectoryPath",
    "uri",
)
# Where a slash at the end says nothing.
_PLACE_KEYS = frozenset((*_PATH_KEYS, *_CWD_KEYS, "dir", "folder", "url", "target_directory"))
_PATH_LISTS = ("paths", "files", "file_paths", "edits", "changes", "args", "replacements", "test_files", "include")
# For tools that name what they act on in their own way: tool -> keys, first that is there.
_TARGET_TEXT = """
Grep pattern
Glob pattern
glob pattern
grep pattern
search_file_content pattern
search_files regex
grep_search query pattern
codebase_search query
file_search query
tool_search query
ToolSearch query
WebSearch query
web_search query
google_web_search query
web_fetch prompt
Skill skill
SlashCommand command
TaskUpdate taskId
TaskGet taskId
Task subagent_type description
Agent subagent_type description
task subagent_type description
process sessionId
write_stdin session_id
send_stdin handle
read_output handle
stop_process handle
start_process name
BashOutput bash_id shell_id
KillShell shell_id bash_id
KillBash shell_id
TaskOutput task_id
probe_capability name
calculate expression
view_image path
web_browser_click element_id
browser_click ref element
browser_type ref element
use_mcp_tool tool_name server_name
sessions_spawn label agentId
sessions_history sessionKey
session_status sessionKey
memory_search query
send_email to recipient
send_message to recipient channel
message target to channel
find_file file_name
search_dir search_term
"""
_WRITTEN = frozenset({"query", "pattern", "regex", "search_term", "expression", "description", "command", "label"})
_TARGET_KEYS: dict[str, tuple[str, ...]] = {}


def _paths_in(value: object, depth: int = 0) -> Iterator[str]:
    """Paths inside lists of paths, of objects with a path, and of Roo's `args.file[].path`."""
    if depth > 4:
        return
    if isinstance(value, str):
        if value and "\n" not in value:
            yield value
    elif isinstance(value, list):
        for entry in value[:_MAX_TARGETS]:
            yield from _paths_in(entry, depth + 1)
    elif isinstance(value, dict):
        for key in _PATH_KEYS:
            found = value.get(key)
            if isinstance(found, str) and found:
                yield found
                return
            if isinstance(found, (list, dict)):
                yield from _paths_in(found, depth + 1)
                return


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value) if -(10**30) < value < 10**30 else f"{value:x}"


def _tool_targets(tool: str, known: str, arguments: dict[str, Any], cwd: str | None) -> list[str]:
    for key in _PATH_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip() and "\n" not in value:
            if _is_url(value):
                return [value if value[:7] == "file://" else clean_url(value)]
            out = [resolve(value.strip(), cwd)]
            extra = arguments.get("edits")
            if isinstance(extra, list):
                for path in _paths_in(extra):
                    path = resolve(path, cwd)
                    if path not in out:
                        out.append(path)
            return out
    for key in ("patch", "input", "diff", "patchText"):
        value = arguments.get(key)
        if isinstance(value, str) and ("*** " in value or "+++ " in value):
            files = patch_files(value)
            if files:
                return [resolve(f, cwd) for f in files]
    for key in _PATH_LISTS:
        value = arguments.get(key)
        if isinstance(value, (list, dict)):
            found: list[str] = []
            for path in _paths_in(value):
                path = resolve(path, cwd)
                if path not in found:
                    found.append(path)
            if (found and key != "args") or (found and isinstance(value, dict)):
                return found[:_MAX_TARGETS]
    for key in ("url", "Url", "URL", "link"):
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return [clean_url(value)]
    for _, value in sorted(arguments.items(), key=lambda item: str(item[0])):
        if isinstance(value, str) and _is_url(value.strip()) and len(value.split()) == 1:
            return [clean_url(value)]
    if not _TARGET_KEYS:
        for line in _TARGET_TEXT.split("\n"):
            name, _, keys = line.partition(" ")
            _TARGET_KEYS[name] = tuple(keys.split())
    for key in _TARGET_KEYS.get(known or tool, ()):
        found_text = _scalar(arguments.get(key))
        if found_text:
            return _asked_for(found_text) if key == "prompt" else [_telling(key, _flat(found_text))]
    names = sorted(str(k) for k in arguments if str(k) == "id" or str(k)[-3:] == "_id")
    for name in names:
        found_text = _scalar(arguments.get(name))
        if found_text:
            return [_flat(found_text)]
    return []


def _telling(key: str, text: str) -> str:
    """A target out of an argument: ids and names as they are; what a person or a model wrote only as a hash.

    A query or a pattern may hold code or a prompt, which the lake must not (METHOD 14); a short one tells as little as
    a name and stays readable.
    """
    if key not in _WRITTEN or len(text) <= 40:
        return text
    return _hashed(text)


def _asked_for(prompt: str) -> list[str]:
    """The URLs that a prompt names, each once; without one a hash, since no prompt reaches the lake (METHOD 14)."""
    found = (clean_url(url.rstrip(".,;:!?")) for url in _rx("url").findall(prompt[:20_000]))
    return list(dict.fromkeys(found))[:_MAX_TARGETS] or [_hashed(_flat(prompt))]


def _hashed(text: str) -> str:
    return "#" + sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _flat(text: str) -> str:
    return " ".join(text[:4_000].split())[:200]


def _text_targets(tool: str, text: str, cwd: str | None) -> list[str]:
    """Targets of a tool whose arguments are one line of text (SWE-agent's `open file 45`)."""
    files = patch_files(text) if "*** " in text or "+++ " in text else []
    if files:
        return [resolve(f, cwd) for f in files]
    line = text.partition("\n")[0][:4_000]
    if _is_url(line.strip()):
        return [clean_url(line)]
    words = line.split()
    if tool in ("search_file", "search_dir"):
        words = words[1:] if len(words) > 1 else ([] if tool == "search_file" else words)
    if tool in (
        "open",
        "create",
        "edit",
        "find_file",
        "search_file",
        "read_file",
        "read",
        "write",
        "view",
        "str_replace_editor",
        "list_files",
    ):
        if tool == "str_replace_editor":
            words = words[1:]
        if words and not _rx("lines").match(words[0]):
            return [resolve(words[0].strip("'\""), cwd)]
    return []


def _arguments(arguments: object) -> tuple[dict[str, Any] | None, str]:
    """Arguments as a dict, or as text where they are one."""
    if isinstance(arguments, dict):
        return arguments, ""
    if arguments is None:
        return {}, ""
    if isinstance(arguments, str):
        head = arguments[:200].lstrip()[:1]
        if head == "{" or head == "[":
            try:
                value = json.loads(arguments)
            except (ValueError, RecursionError):
                return None, arguments
            if isinstance(value, dict):
                return value, ""
            if isinstance(value, list):
                return None, _argv(value)
        return None, arguments
    if isinstance(arguments, (list, tuple)):
        return None, _argv(list(arguments))
    return {"value": arguments}, ""


def read_call(
    tool: str,
    arguments: object,
    cwd: str | None = None,
    *,
    kind: str | None = None,
    action: str | None = None,
    target: str | None = None,
    rows: dict[str, str] | None = None,
) -> Call:
    """What a call does, from its tool and arguments (a dict, JSON text, command text, an argument vector or None).

    `cwd`: the step's working directory. `kind`, `action`, `target`: what the log itself says (EVENTS.md). Target and
    action win; kind wins where the table says `other`, guesses by name or decides by the command. `rows`: the user's
    own rows, tool or action -> kind, used only where the kind would be `other`. Never raises; equal input gives an
    equal call.
    """
    if not isinstance(tool, str):
        tool = str(tool)
    call = Call()
    call.tool = tool
    own, source, known = _tool_row(tool)
    given, text = _arguments(arguments)
    call.program = ""
    call.is_exit_masked = call.is_piped = call.is_background = False
    act = tool
    targets: list[str] = []
    if given is not None and own != "shell" and own != "code":
        own = _argument_kind(known, given) or own
        if known == "verify_done" or known == "use_mcp_tool" or tool == "use_mcp_tool":
            own, source, targets = _nested(tool, given, own, source, cwd)
        targets = targets or _tool_targets(tool, known, given, cwd)
        if known in _SEARCH_TOOLS:
            given = {
                k: v.replace('"', "").replace("'", "") if isinstance(v, str) else v
                for k, v in given.items()
                if k in _SEARCH_KEYS
            }
        print_text = _print_of(given)
    elif own == "shell":
        command, key = _command_of(given) if given is not None else (text, "")
        where = cwd
        if given:
            for name in _CWD_KEYS:
                value = given.get(name)
                if isinstance(value, str) and value:
                    where = resolve(value, cwd)
                    break
        own, program, targets, call.program, call.is_exit_masked, call.is_piped, call.is_background, print_text = (
            _read_command(command, where)
        )
        targets = list(targets)
        if program:
            act = f"{tool}:{program}"
        source = "command"
        if not key and not command:
            own = "other"  # what ran is not told, which is not an empty command that polls
        if given:
            own = _shell_flags(given, command, own)
            call.is_background = (
                call.is_background or given.get("run_in_background") is True or given.get("background") is True
            )
            beside = _print_of({k: v for k, v in given.items() if k != key}) if len(given) > 1 else ""
            if beside:
                print_text += f"\x1d{beside}"
    elif own == "code":
        code = (
            text
            if given is None
            else next((v for k in ("code", "command", "input", "script") if isinstance(v := given.get(k), str)), "")
        )
        own, targets = _read_code(code, cwd)
        source = "command"
        print_text = code.strip().lower()
    else:
        targets = _text_targets(known or tool, text, cwd)
        own = _argument_kind(known, {"command": text.split(None, 1)[0] if text.strip() else ""}) or own
        print_text = canonical(text)
        if known in _SEARCH_TOOLS:
            print_text = canonical(text.replace('"', "").replace("'", ""))
    call.kind_differs = False
    if own == "other":
        source = "none"
    if kind is not None and kind in KINDS:
        if source != "table":
            if kind != own:
                own = kind
            source = "log"
        elif kind != own:
            call.kind_differs = True
    if own == "other" and rows:
        row = rows.get(act)
        if row in KINDS and row != "other":
            own, source = row, "table"
    if target is not None:
        targets = [_given_target(target, cwd)]
    call.kind = own
    call.kind_source = source
    call.action = action if action is not None else act
    call.targets = targets
    call.target = targets[0] if targets else ""
    if not print_text and target is not None:
        # A log that tells the target instead of the arguments: the target is what tells two calls apart.
        print_text = f"target={canonical(target)}"
    call.fingerprint = _digest(tool, print_text)
    return call


def _given_target(target: str, cwd: str | None) -> str:
    if _is_url(target):
        return clean_url(target)
    return resolve(target, cwd) if _is_path(target, False) else target.strip()


def _print_of(given: dict[str, Any]) -> str:
    out: list[str] = []
    try:
        keys = sorted(given)
    except TypeError:  # keys of several types, which no JSON object has
        keys = sorted(k for k in given if isinstance(k, str))
    for key in keys:
        value = given[key]
        if value is None or key in _EXPLAINING:
            continue
        if type(value) is str:
            value = value.strip().lower()
            if value[-1:] == "/" and key in _PLACE_KEYS:
                value = value.rstrip("/") or "/"
            out.append(f"{key}=s{len(value)}:{value}")
        else:
            out.append(f"{key}={canonical(value)}")
    return "".join(out)


def _nested(tool: str, given: dict[str, Any], own: str, source: str, cwd: str | None) -> tuple[str, str, list[str]]:
    """Tools that carry another call: a test command (its target is the target), an MCP tool behind a generic one."""
    if "test_cmd" in given:
        command = _command_of({"test_cmd": given["test_cmd"]})[0]
        return own, source, list(_read_command(command, cwd)[2]) if command else []
    name = _text(given.get("tool_name"))
    if not name:
        return own, source, []
    inner, inner_source, _ = _tool_row(name)
    if inner in ("shell", "code"):
        inner = "execute"
    return inner, "none" if inner_source == "none" else "name", [_flat(name)]


def _shell_flags(given: dict[str, Any], command: str, own: str) -> str:
    """Flags beside a command: a restart of the shell, input to a running program, an empty command that polls."""
    if given.get("restart") is True:
        return "operate"
    value = given.get("is_input")
    if value is True or value == "true":
        text = command.strip()
        return "wait" if not text else "operate" if text in ("C-c", "C-z", "C-d") else "execute"
    return own


def _read_code(code: str, cwd: str | None) -> tuple[str, list[str]]:
    """Kind and targets of a notebook cell or a code tool."""
    head = code[:20_000]
    m = _rx("code_edit").search(head)
    if m is not None:
        return "edit", [resolve(m.group(1), cwd)]
    if _rx("code_read").match(head):
        return "read", []
    m = _rx("url").search(head)
    return _inline_kind(head), [clean_url(m.group())] if m else []
