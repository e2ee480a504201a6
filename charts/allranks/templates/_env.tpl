{{/* The operator's settings; see docs/reference/settings.md. */}}
{{- define "allranks.env" -}}
- name: ALLRANKS_NAMESPACES
  value: {{ join "," .Values.namespaces | quote }}
- name: ALLRANKS_POOLS
  value: {{ include "allranks.pools" . | default "false" | quote }}
- name: ALLRANKS_SWEEPS
  value: {{ .Values.sweeps.enabled | quote }}
- name: ALLRANKS_QUEUES
  value: {{ .Values.queues.enabled | quote }}
- name: ALLRANKS_GANGS
  value: {{ .Values.gangs.enabled | quote }}
{{- if .Values.gangs.enabled }}
- name: ALLRANKS_COSCHEDULING_SCHEDULER
  value: {{ .Values.gangs.coschedulingScheduler | quote }}
{{- end }}
- name: ALLRANKS_HELPER_IMAGE
  value: {{ default (include "allranks.image" .) .Values.helperImage | quote }}
- name: ALLRANKS_HELPER_PULL_SECRETS
  value: {{ join "," .Values.helperImagePullSecrets | quote }}
- name: ALLRANKS_DATA_CLAIM
  value: {{ .Values.data.claim | quote }}
- name: ALLRANKS_DATA_IMAGE
  value: {{ .Values.data.image | quote }}
- name: ALLRANKS_DATA_HOST_PATH
  value: {{ .Values.data.hostPath | quote }}
- name: ALLRANKS_DATA_CACHE_SIZE
  value: {{ .Values.data.cacheSize | quote }}
- name: ALLRANKS_DATA_PODS
  value: {{ pick .Values.data "resources" "nodeSelector" "tolerations" | toJson | quote }}
- name: ALLRANKS_LEADER_ELECTION
  value: {{ include "allranks.leaderElection" . | default "false" | quote }}
- name: ALLRANKS_LEASE_NAME
  value: {{ include "allranks.fullname" . }}
- name: ALLRANKS_LEASE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: ALLRANKS_LEASE_SECONDS
  value: {{ .Values.leaderElection.leaseSeconds | int | quote }}
{{- /* The container `frontend` serves the ports. */}}
- name: ALLRANKS_SOCKET
  value: /run/allranks/operator.sock
- name: ALLRANKS_CHECK_SOCKET
  value: /tmp/check.sock
- name: ALLRANKS_METRICS_AUTH
  value: {{ .Values.metrics.authentication | quote }}
{{- /* Address of the Service, without the cluster domain, which differs between clusters. */}}
- name: ALLRANKS_REPORT_URL
  value: {{ if include "allranks.reports" . }}{{ printf "http://%s.%s.svc:8081/v1/report" (include "allranks.fullname" .) .Release.Namespace | quote }}{{ else }}""{{ end }}
- name: ALLRANKS_NETWORK_POLICIES
  value: {{ include "allranks.jobPolicies" . | default "false" | quote }}
- name: ALLRANKS_DISRUPTION_BUDGETS
  value: {{ .Values.podDisruptionBudget.jobs | quote }}
- name: ALLRANKS_RECEIVERS
  value: {{ if .Values.notify.secretName }}/etc/allranks/notify/receivers.yaml{{ else }}""{{ end }}
- name: ALLRANKS_CONCURRENCY
  value: {{ .Values.settings.concurrency | int | quote }}
- name: ALLRANKS_REQUEST_TIMEOUT
  value: {{ .Values.settings.requestTimeout | toString | quote }}
- name: ALLRANKS_WATCH_TIMEOUT
  value: {{ .Values.settings.watchTimeout | int | quote }}
- name: ALLRANKS_NODE_CONDITIONS
  value: {{ if include "allranks.nodeHealth" . }}{{ join "," .Values.nodeHealth.conditions | quote }}{{ else }}""{{ end }}
- name: ALLRANKS_NODE_TAINTS
  value: {{ if include "allranks.nodeHealth" . }}{{ join "," .Values.nodeHealth.taints | quote }}{{ else }}""{{ end }}
- name: ALLRANKS_NODE_LOST_SECONDS
  value: {{ .Values.settings.nodeLostSeconds | int | quote }}
- name: ALLRANKS_NAMESPACE_POLICIES
  value: {{ .Values.policy.readNamespaces | quote }}
{{- with .Values.policy }}
- name: ALLRANKS_DEFAULT_TTL_SECONDS_AFTER_FINISHED
  value: {{ include "allranks.number" .defaults.ttlSecondsAfterFinished }}
- name: ALLRANKS_DEFAULT_ACTIVE_DEADLINE_SECONDS
  value: {{ include "allranks.number" .defaults.activeDeadlineSeconds }}
- name: ALLRANKS_DEFAULT_POOL
  value: {{ .defaults.pool | quote }}
- name: ALLRANKS_DEFAULT_RUN_AS_USER
  value: {{ include "allranks.number" .defaults.runAsUser }}
- name: ALLRANKS_DEFAULT_POD_SECURITY
  value: {{ .defaults.podSecurity | quote }}
- name: ALLRANKS_MAX_POD_SECURITY
  value: {{ .limits.podSecurity | quote }}
- name: ALLRANKS_MAX_ACTIVE_DEADLINE_SECONDS
  value: {{ include "allranks.number" .limits.activeDeadlineSeconds }}
- name: ALLRANKS_MAX_PODS
  value: {{ include "allranks.number" .limits.pods }}
- name: ALLRANKS_ALLOWED_POOLS
  value: {{ join "," .limits.pools | quote }}
- name: ALLRANKS_IMAGE_PREFIXES
  value: {{ join "," .limits.imagePrefixes | quote }}
{{- end }}
{{- $accounts := list }}
{{- range $name := list (include "allranks.serviceAccountName" .) (include "allranks.archiverName" .) (include "allranks.uiName" .) }}
{{- $accounts = append $accounts (printf "%s/%s" $.Release.Namespace $name) }}
{{- end }}
- name: ALLRANKS_RESERVED_ACCOUNTS
  value: {{ join "," $accounts | quote }}
- name: ALLRANKS_LOG_LEVEL
  value: {{ .Values.settings.logLevel }}
- name: ALLRANKS_LOG_FORMAT
  value: {{ .Values.settings.logFormat }}
{{- end }}
